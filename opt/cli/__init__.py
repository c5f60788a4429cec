"""The `kvopt` command: names, keys and exit codes are a contract; see `kvopt --help`.

Exit codes: 0 done, 1 verification failed, 2 usage, 3 invalid input, 4 stopped with no solution, 130 interrupted (what was
found is saved). Verb modules import click alone at the top, so that help answers at once.
"""

from __future__ import annotations

import os
import sys

import click

from opt.cli.benching import bench
from opt.cli.capacity import capacity
from opt.cli.console import Console
from opt.cli.costing import fit, measure
from opt.cli.intake import describe, generate, import_trace, mix_files, predict
from opt.cli.pictures import list_names, plot_plan
from opt.cli.proving import prove
from opt.cli.simulating import simulate
from opt.cli.solving import bound, compare_files, solve, verify

__all__ = ["cli", "main", "run"]

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


@click.group(context_settings=CONTEXT, no_args_is_help=True)
@click.version_option(package_name="kvopt", message="kvopt %(version)s")
def cli() -> None:
    """Certified batching of LLM requests under a KV-cache memory budget.

    \b
    kvopt solve @demo                          solve a bundled instance, with a proved gap
    kvopt compare @demo                        every policy against the lower bound
    kvopt generate mixture --n 1000 -o a.json  make an instance
    kvopt import t.csv --format azure --memory 60000 -o b.json.gz
    kvopt solve b.json.gz --round-s 0.05 -o plan.json && kvopt verify plan.json

    FILE is an instance file, `-` for standard input, or @NAME for a bundled instance.
    """


for verb in (
    generate,
    import_trace,
    mix_files,
    predict,
    describe,
    solve,
    bound,
    verify,
    compare_files,
    simulate,
    plot_plan,
    prove,
    bench,
    capacity,
    fit,
    measure,
    list_names,
):
    cli.add_command(verb)


def main() -> None:
    """Run the command line and exit with its documented code; no traceback unless `--debug` is given."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit code."""
    try:
        code = cli.main(args=arguments, prog_name="kvopt", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return 2
    except click.UsageError as error:
        error.show()
        return 2
    except (KeyboardInterrupt, click.Abort):
        Console.say_error("interrupted; nothing was found yet")
        return 130
    except BrokenPipeError:  # the reader of our output has gone, as in `kvopt ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except Exception as error:
        return _refused(error, debug="--debug" in arguments)


def _refused(error: Exception, *, debug: bool) -> int:
    from opt.core.errors import CertificateError

    if debug:
        raise error
    if isinstance(error, CertificateError):
        Console.say_error(str(error))
        return 1
    if isinstance(error, OSError):
        Console.say_error(f"{error.filename or 'output'}: {error.strerror or error}")
        return 3
    if isinstance(error, ValueError | ImportError):
        Console.say_error(str(error))
        return 3
    if isinstance(error, MemoryError):
        Console.say_error("not enough memory for this instance; take a smaller one (--limit, --n)")
        return 3
    Console.say_error(f"internal error, please report it: {type(error).__name__}: {error} (--debug shows where)")
    return 70
