"""One file is one architecture, named as `general.architecture` ("-" as "_"), and all that is known
of it.

HF      names of the Hugging Face classes that convert to it
NAMES   where a checkpoint has its tensors, and how they are folded (nn/hf.py)
BIASED  ends of the names of what has a bias in a model that does not say
Params  a subclass of nn.params.Params with the keys that only this architecture has
build   build(g, w, p) -> logits [n_vocab, n_outputs], or hidden states [n_embd, n_outputs] of an
        encoder: the only description of the graph. g is a Step, w a Weights, p the Params. Traced
        without data it lists the tensors (for loader, converter and tiny models) and how layers
        attend (for the memory).
"""
