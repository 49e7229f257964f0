"""The process: sockets, signals, workers, HTTP/1.1 and WebSocket connections."""
