//! The router: KV map, load book, selection and booking per pool.
