//! Tokenizers, chat templates, block keys and the cache of tokenised prefixes.
