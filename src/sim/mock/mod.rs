//! The virtual engine behind a real OpenAI-style HTTP server.
