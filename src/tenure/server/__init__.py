"""The server process: sockets, signals, workers, HTTP/1.1 and WebSocket connections."""
