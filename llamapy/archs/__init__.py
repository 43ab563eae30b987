"""One file, one architecture, named as `general.architecture`: hyperparameters and graph."""
