"""The control socket: the requests that the daemon serves, who may send them, and the answers.

HTTP/1.1 and JSON over a unix socket, so `curl --unix-socket control.sock http://daemon/v1/status` works. The routes are
a fixed table (`routes.py`), the bodies are typed (`types.py`), the kernel identifies the peer (`peers.py`),
and requests that a web browser sends through a forwarded port are refused (`origin.py`).
Nothing is imported here: the client must stay light.
"""
