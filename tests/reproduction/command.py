"""``rookery reproduce``, in this process."""

from typer.testing import CliRunner

from rookery.cli.main import app


def run(*arguments, code=0):
    result = CliRunner().invoke(app, ["reproduce", *arguments], env={"COLUMNS": "200"})
    assert result.exit_code == code, (result.output, result.exception)
    return result
