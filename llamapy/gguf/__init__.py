"""The GGUF container: bytes, names and offsets. Knows no tensor type: ids are opaque numbers.

`reader.GGUFFile` opens one file, `split.open_split` a file or a set of parts,
`writer.GGUFWriter` writes.
"""
