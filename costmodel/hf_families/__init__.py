"""One module per group of Hugging Face families: how the keys of a ``config.json`` become layers."""
