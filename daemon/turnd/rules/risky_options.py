"""What makes a harmless program run or write something: a table, not code (GATE-14).

A wildcard of an allowing pattern never stands for a word that this table names; a pattern that spells it out does.
`[commands.PROGRAM]` of the configuration adds to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from immutables import Map


@dataclass(frozen=True, slots=True)
class Risky:
    """What of one program's words is never taken for a wildcard."""

    everything: bool = False
    """It runs its arguments, or they are code: only a pattern that spells out every word allows it."""
    script: bool = False
    """With `everything`: once a script (or `-m` and a module) is spelled out, what follows are its arguments."""
    long: tuple[str, ...] = ()
    """Options with two dashes, and every beginning of theirs."""
    short: str = ""
    """Options of one letter, alone, bundled with others, or with their value behind them."""
    valued: str = ""
    """Harmless options of one letter that take a value: what follows in the word is no option."""
    exact: tuple[str, ...] = ()
    """Whole words, and words that begin with one and `=`; one that ends in `*` is a beginning."""
    operands: int | None = None
    """It writes to the operand after so many."""
    subcommands: Mapping[str, Risky] | None = None
    """Those that a wildcard may stand for, with what is risky of each beside the program's own."""
    common: str = ""
    """As `short`, before the subcommand only."""


@dataclass(frozen=True, slots=True)
class RiskyTable:
    """The table in force: what is shipped, and what the configuration adds."""

    programs: Mapping[str, Risky] = field(default_factory=lambda: SHIPPED)

    def of(self, program: str) -> Risky:
        """What is risky of a program, by its name without directories."""
        name = program.rpartition("/")[2]
        found = self.programs.get(name)
        return found or self.programs.get(name.rstrip("0123456789.-")) or _NOTHING

    def also(self, program: str, *, options: tuple[str, ...], everything: bool) -> RiskyTable:
        """With further options of one program, written as `-x`, `--long` or any other word."""
        known = self.of(program)
        more = Risky(
            everything=known.everything or everything,
            script=known.script and not everything,
            long=(*known.long, *(option for option in options if option.startswith("--"))),
            short=known.short + "".join(option[1] for option in options if _is_letter(option)),
            valued=known.valued,
            exact=(*known.exact, *(option for option in options if not option.startswith("--"))),
            operands=known.operands,
            subcommands=known.subcommands,
            common=known.common,
        )
        return RiskyTable(Map({**self.programs, program: more}))


def _is_letter(option: str) -> bool:
    return len(option) == 2 and option[0] == "-" and option[1] != "-"


def _git() -> Risky:
    plain = (
        *("add", "am", "annotate", "apply", "blame", "branch", "cat-file", "check-attr", "check-ignore"),
        *("checkout", "checkout-index", "cherry", "cherry-pick", "clean", "commit", "commit-tree", "count-objects"),
        *("describe", "diff", "diff-files", "diff-index", "diff-tree", "fetch", "for-each-ref", "fsck", "gc"),
        *("hash-object", "init", "log", "ls-files", "ls-remote", "ls-tree", "merge", "merge-base", "merge-tree"),
        *("mv", "name-rev", "notes", "pull", "push", "range-diff", "reflog", "remote", "reset", "restore"),
        *("rev-list", "rev-parse", "revert", "rm", "shortlog", "show", "show-branch", "show-ref", "stash"),
        *("status", "switch", "symbolic-ref", "tag", "update-index", "update-ref", "var", "verify-commit"),
        *("verify-tag", "version", "whatchanged", "worktree", "write-tree"),
    )
    own = {
        "archive": Risky(short="o", long=("--exec",)),
        "bundle": Risky(everything=True),
        "clone": Risky(short="cu", long=("--config", "--template")),
        "format-patch": Risky(short="o"),
        "grep": Risky(short="O", valued="ABCefm"),
        "help": Risky(short="wim", long=("--web", "--man", "--info")),
    }
    return Risky(
        long=(
            *("--config-env", "--exec-path", "--git-dir", "--work-tree", "--output", "--output-directory"),
            *("--upload-pack", "--receive-pack", "--exec", "--ext-diff", "--textconv", "--filters"),
            *("--open-files-in-pager", "--extcmd", "--namespace", "--super-prefix", "--template"),
        ),
        common="cC",
        valued="SGLnUlMBCX",
        subcommands=Map({**{name: Risky() for name in plain}, **own}),
    )


_NOTHING: Final = Risky()
_EVERYTHING: Final = Risky(everything=True)
_INTERPRETER: Final = Risky(everything=True, script=True)

_WRAPPERS: Final = (
    *("xargs", "env", "timeout", "nice", "nohup", "sudo", "sudoedit", "doas", "su", "runuser", "pkexec", "setsid"),
    *("stdbuf", "ionice", "chroot", "unshare", "nsenter", "setarch", "linux32", "linux64", "parallel", "busybox"),
    *("toybox", "flock", "watch", "strace", "ltrace", "gdb", "lldb", "perf", "valgrind", "ssh", "scp", "sftp"),
    *("rsync", "script", "scriptreplay", "time", "at", "batch", "crontab", "chrt", "taskset", "numactl", "prlimit"),
    *("setpriv", "capsh", "sg", "newgrp", "start-stop-daemon", "systemd-run", "run-parts", "dbus-run-session"),
    *("bwrap", "firejail", "proot", "fakeroot", "catchsegv", "socat", "nc", "ncat", "tmux", "screen", "expect"),
    *("entr", "inotifywait", "unbuffer", "rlwrap", "hyperfine", "chpst", "softlimit", "choom", "uclampset", "ld.so"),
    *("ld-linux-x86-64.so", "ld-linux-aarch64.so", "ld-linux.so", "ld-musl-x86_64.so", "exch", "install"),
)
_CODE: Final = (
    *("awk", "gawk", "mawk", "nawk", "original-awk", "sed", "gsed", "ed", "red", "ex", "vi", "vim", "view", "nvim"),
    *("vimdiff", "rvim", "rview", "gvim", "nano", "pico", "emacs", "emacsclient", "dc", "bc", "m4", "make4ht"),
    *("sqlite3", "psql", "mysql", "gnuplot", "octave", "R", "Rscript", "jshell", "ghci", "iex", "elixir", "erl"),
    *("tclsh", "wish", "osascript", "gdbtui", "eval", "source", "exec", "command", "builtin", "openssl", "gpg"),
)
_INTERPRETERS: Final = (
    *("python", "pypy", "perl", "ruby", "node", "nodejs", "deno", "bun", "lua", "luajit", "php", "bash", "sh"),
    *("dash", "zsh", "ksh", "mksh", "fish", "csh", "tcsh", "ash", "rbash"),
)

SHIPPED: Final[Mapping[str, Risky]] = Map(
    {
        **{name: _EVERYTHING for name in (*_WRAPPERS, *_CODE)},
        **{name: _INTERPRETER for name in _INTERPRETERS},
        "git": _git(),
        "find": Risky(exact=("-exec", "-execdir", "-ok", "-okdir", "-delete", "-fprint*", "-fls")),
        "sort": Risky(short="oT", long=("--output", "--compress-program", "--temporary-directory"), valued="kSt"),
        "tar": Risky(
            short="IFxcruA",
            long=(
                *("--to-command", "--checkpoint-action", "--use-compress-program", "--info-script"),
                *("--new-volume-script", "--rsh-command", "--rmt-command", "--extract", "--get", "--create"),
                *("--append", "--update", "--concatenate", "--catenate", "--delete", "--index-file"),
                *("--listed-incremental", "--remove-files", "--volno-file"),
            ),
            exact=("x*", "c*", "r*", "u*", "A*"),
        ),
        "bsdtar": _EVERYTHING,
        "cpio": _EVERYTHING,
        "zip": Risky(short="TOm", long=("--test", "--unzip-command", "--output-file", "--move")),
        "rg": Risky(
            short="z", long=("--pre", "--hostname-bin", "--search-zip"), valued="ABCEMTdefgjmrt"
        ),
        "fd": Risky(short="xX", long=("--exec", "--exec-batch"), valued="EScdejt"),
        "fdfind": Risky(short="xX", long=("--exec", "--exec-batch"), valued="EScdejt"),
        "grep": Risky(valued="ABCDdefm"),
        "ag": Risky(long=("--pager",), short="z"),
        "ack": Risky(long=("--pager", "--output"), exact=("--ackrc",)),
        "bat": Risky(long=("--pager", "--paging", "--diff", "--generate-config-file")),
        "batcat": Risky(long=("--pager", "--paging", "--diff", "--generate-config-file")),
        "less": Risky(
            short="oOkTtp", long=("--log-file", "--LOG-FILE", "--lesskey*", "--tag", "--pattern"), exact=("+*",)
        ),
        "more": Risky(exact=("+*",)),
        "most": Risky(exact=("+*",)),
        "pager": Risky(short="oOkTtp", long=("--log-file", "--LOG-FILE", "--tag"), exact=("+*",)),
        "man": Risky(
            short="PHCBlLMX", long=("--pager", "--html", "--config-file", "--local-file", "--gxditview")
        ),
        "info": Risky(short="o", long=("--output", "--restore", "--dribble")),
        "curl": Risky(
            short="oOKTDcJFE",
            long=(
                *("--output", "--remote-name", "--config", "--upload-file", "--dump-header", "--cookie-jar"),
                *("--remote-header-name", "--form", "--trace", "--stderr", "--libcurl", "--output-dir"),
                *("--remote-name-all", "--engine", "--hsts", "--alt-svc", "--netrc-file", "--etag-save"),
                *("--create-dirs", "--cert", "--key", "--data", "--json", "--url-query", "--next"),
            ),
            valued="AbeHhmrtuUwxXyYzC",
        ),
        "wget": _EVERYTHING,
        "aria2c": _EVERYTHING,
        "uniq": Risky(operands=1, valued="fsw"),
        "xxd": Risky(operands=1, short="r", exact=("-revert",), valued="cglosR"),
        "tree": Risky(short="oR", long=("--output",), valued="LPIHT"),
        "date": Risky(short="s", long=("--set",), valued="dfrI"),
        "hostname": Risky(short="Fb", long=("--file", "--boot"), operands=0),
        "file": Risky(short="Cz", long=("--compile", "--uncompress"), valued="mFfeP"),
        "diff": Risky(long=("--output",)),
        "sdiff": Risky(short="o", long=("--output", "--diff-program")),
        "diff3": Risky(long=("--diff-program",)),
        "pr": Risky(),
        "jq": Risky(short="L", long=("--library-path",)),
        "yq": Risky(short="is", long=("--inplace", "--in-place", "--split-exp")),
        "base64": Risky(short="o", long=("--output",)),
        "iconv": Risky(short="o", long=("--output",), valued="ft"),
        "shuf": Risky(short="o", long=("--output",), valued="in"),
        "split": Risky(everything=True),
        "csplit": Risky(everything=True),
        "tee": Risky(everything=True),
        "dd": Risky(everything=True),
        "column": Risky(),
        "ps": Risky(),
        "top": Risky(short="W"),
        "nl": Risky(),
        "dmesg": Risky(short="CcDEn", long=("--clear", "--read-clear", "--console-off", "--console-on")),
        "journalctl": Risky(
            long=("--vacuum-size", "--vacuum-time", "--vacuum-files", "--rotate", "--flush", "--cursor-file")
        ),
        "ip": Risky(short="b", exact=("netns", "exec", "-batch", "-force")),
        "ifconfig": _EVERYTHING,
        "mount": _EVERYTHING,
        "dpkg": _EVERYTHING,
        "rpm": _EVERYTHING,
        "go": Risky(exact=("-toolexec*", "--toolexec*", "-exec*", "--exec*", "-vettool*", "--vettool*", "-o*")),
        "pytest": Risky(short="pc", long=("--rootdir", "--confcutdir", "--basetemp", "--debug", "--override-ini")),
        "rustc": Risky(short="oC", long=("--out-dir", "--codegen", "--emit")),
        "nslookup": Risky(),
        "zgrep": Risky(valued="ABCDdefm"),
    }
)
