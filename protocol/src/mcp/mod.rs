//! Model Context Protocol: envelopes, splices and errors.
