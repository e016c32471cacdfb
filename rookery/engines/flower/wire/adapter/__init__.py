"""The only folder that uses modules of Flower that are not public. They are those of ``flwr`` 1.41 and 1.42.

A node speaks the SuperLink's Fleet API itself (``node.py``), so that its process and its compiled functions live on from
message to message; the server opens a run through the Control API and then holds a ``Grid`` in its own process
(``server.py``). A contract test says what both count on.
"""
