//! JSON-RPC 2.0 envelopes on raw JSON: ids and payloads keep their bytes.
