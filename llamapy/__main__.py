"""`python -m llamapy` is the same as `llamapy`."""

from llamapy.cli.main import main

main()
