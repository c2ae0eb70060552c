//! What differs between engines: metrics pages, capabilities, model lists.
