"""Why a node does not answer a request."""


class Refused(Exception):
    """A request that cannot be answered; ``kind`` tells the server what to do about it."""

    def __init__(self, kind: str, text: str):
        super().__init__(text)
        self.kind = kind
