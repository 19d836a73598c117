"""The control socket: what may be asked of the daemon, who may ask it, and the answers; it decides nothing itself.

HTTP/1.1 and JSON over a unix socket, so `curl --unix-socket control.sock http://daemon/v1/status` works. The routes are
a fixed table (`routes.py`), the bodies are typed (`types.py`), the peer is known by the kernel's word (`peers.py`).
Nothing is imported here: the client must stay light.
"""
