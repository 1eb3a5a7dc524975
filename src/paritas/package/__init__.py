"""Files of a package: graph, data, runtime configuration, tokenizer, card; written whole or not at all."""
