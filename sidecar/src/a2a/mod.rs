//! A2A: binding, service, executor, store.
