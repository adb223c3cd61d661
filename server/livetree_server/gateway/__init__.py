"""The gateway: WebSockets in. `session` decides, `endpoint` moves bytes."""
