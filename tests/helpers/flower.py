"""Flower inside this process: a run without a SuperLink, and messages that travel nowhere."""

from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity


def local_run():
    """A run for a ``Grid`` inside this process, and this process as its server."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    return Run.create_empty(run_id=1)


def over_the_wire(message):
    """A message as it arrives: taken apart and put together again."""
    name = message.object_id
    contents = {key: each.deflate() for key, each in get_all_nested_objects(message).items()}
    arrived = inflate_object_from_contents(name, contents)
    arrived.metadata.__dict__["_message_id"] = name
    return arrived
