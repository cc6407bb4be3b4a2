"""What makes a harmless program run or write something: a table, not code (GATE-14).

A wildcard of an allowing pattern never stands for a word that this table names; a pattern that spells it out does.
`[commands.PROGRAM]` of the configuration adds to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from immutables import Map


@dataclass(frozen=True, slots=True)
class Risky:
    """What of one program's words is never taken for a wildcard."""

    everything: bool = False
    """It runs its arguments, or they are code: only a pattern that spells out every word allows it."""
    script: bool = False
    """With `everything`: where a script is spelled out first, what follows are its own arguments."""
    module: bool = False
    """As `script`, for `-m` and the name of a module."""
    long: tuple[str, ...] = ()
    """Options with two dashes, and every beginning of theirs."""
    short: str = ""
    """Options of one letter, alone, bundled with others, or with their value behind them."""
    valued: str = ""
    """Harmless options of one letter that take a value: what follows in the word is no option."""
    bundled: bool = False
    """Its first word is a bundle of options of one letter also without a dash."""
    words: tuple[str, ...] = ()
    """Whole words; `*` stands for any text, and what has a value behind `=` counts too."""
    operands: int | None = None
    """It writes to what stands after so many operands."""
    subcommands: Mapping[str, Risky] | None = None
    """Those that a wildcard may stand for, with what is risky of each beside the program's own."""
    early: str = ""
    """As `short`, before the subcommand only."""
    runs: tuple[str, ...] = ()
    """Words behind which everything is for another program, or code: what follows must be spelled out, as they must."""


@dataclass(frozen=True, slots=True)
class RiskyTable:
    """The table in force: what is shipped, and what the configuration adds."""

    programs: Mapping[str, Risky] = field(default_factory=lambda: SHIPPED)

    def of(self, program: str) -> Risky:
        """What is risky of a program, by its name without directories and without a version behind it."""
        name = program.rpartition("/")[2]
        found = self.programs.get(name)
        return found or self.programs.get(name.rstrip("0123456789.-")) or NOTHING

    def also(self, program: str, options: Iterable[str], *, spelled_out: bool) -> RiskyTable:
        """With further risky words of one program: `-x`, `--long`, or a glob over whole words.

        With `spelled_out`, all of its words are.
        """
        known = self.of(program)
        more = tuple(options)
        letters = "".join(word[1] for word in more if len(word) == 2 and word[0] == "-" and word[1] != "-")
        added = replace(
            known,
            everything=known.everything or spelled_out,
            script=known.script and not spelled_out,
            module=known.module and not spelled_out,
            long=(*known.long, *(word for word in more if word.startswith("--"))),
            short=known.short + letters,
            valued="".join(letter for letter in known.valued if letter not in letters),
            words=(*known.words, *(word for word in more if not word.startswith("--"))),
        )
        return RiskyTable(Map({**self.programs, program: added}))


NOTHING: Final = Risky()


def _git() -> Mapping[str, Risky]:
    plain = (
        *("add", "annotate", "apply", "blame", "branch", "cat-file", "check-attr", "check-ignore"),
        "checkout",
        *("checkout-index", "cherry", "clean", "count-objects", "describe", "diff"),
        *("diff-files", "diff-index", "diff-tree", "for-each-ref", "fsck", "gc", "hash-object"),
        *("init", "log"),
        *("ls-files", "ls-tree", "merge-base", "merge-tree", "mv", "name-rev", "notes", "range-diff"),
        "reflog",
        *("reset", "restore", "rev-list", "rev-parse", "rm", "shortlog", "show", "show-branch", "show-ref"),
        *("stash", "status", "switch", "symbolic-ref", "update-index", "update-ref", "var"),
        *("version", "whatchanged", "worktree", "write-tree"),
    )
    signing = ("--gpg-sign",)
    merging = Risky(short="sS", long=("--strategy", *signing), valued="mXF")
    remote = Risky(words=("*::*",))
    return Map(
        {
            **dict.fromkeys(plain, NOTHING),
            **dict.fromkeys(("merge", "cherry-pick", "revert"), merging),
            **dict.fromkeys(("fetch", "ls-remote", "remote"), remote),
            "push": Risky(long=("--signed",), words=("*::*",)),
            "pull": Risky(short="sS", long=("--strategy", *signing), words=("*::*",)),
            "commit": Risky(short="S", long=signing, valued="mFcCtu"),
            "commit-tree": Risky(short="S", long=signing, valued="mFp"),
            "tag": Risky(short="suv", long=("--sign", "--local-user", "--verify"), valued="mFn"),
            "archive": Risky(short="o", long=("--remote", "--format")),
            "clone": Risky(short="cu", long=("--config",), words=("*::*",)),
            "format-patch": Risky(short="o"),
            "grep": Risky(short="O", valued="ABCefm"),
        }
    )


_EVERYTHING: Final = Risky(everything=True)
_INTERPRETER: Final = Risky(everything=True, script=True)
_FD: Final = Risky(short="xX", long=("--exec", "--exec-batch"), valued="EScdejt")
_PAGER: Final = Risky(
    short="oOkTtp",
    long=("--log-file", "--LOG-FILE", "--tag", "--tag-file", "--pattern"),
    words=("+*", "--lesskey*"),
)
_COMPILER: Final = Risky(
    words=("-wrapper", "-fplugin*", "-specs*", "--specs*", "-B*", "@*", "-Xclang", "-load"),
    long=("--config",),
)
_APT: Final = Risky(short="oc", long=("--option", "--config-file"))
_BAT: Final = Risky(long=("--pager", "--generate-config-file"))

_WRAPPERS: Final = (
    *("xargs", "env", "timeout", "nice", "nohup", "sudo", "sudoedit", "doas", "su", "runuser"),
    *("pkexec", "setsid"),
    *("stdbuf", "ionice", "chroot", "unshare", "nsenter", "setarch", "linux32", "linux64", "parallel"),
    "busybox",
    *("toybox", "flock", "watch", "strace", "ltrace", "gdb", "lldb", "perf", "valgrind", "ssh", "scp"),
    "sftp",
    *("rsync", "script", "time", "at", "batch", "crontab", "chrt", "taskset", "numactl", "prlimit"),
    "setpriv",
    *("capsh", "sg", "newgrp", "start-stop-daemon", "systemd-run", "run-parts", "dbus-run-session", "bwrap"),
    *("firejail", "proot", "fakeroot", "catchsegv", "socat", "nc", "ncat", "tmux", "screen", "expect"),
    "entr",
    *("unbuffer", "rlwrap", "hyperfine", "chpst", "softlimit", "choom", "uclampset", "ldd", "fzf", "ld.so"),
    *("npx", "pnpx", "bunx", "uvx", "pipx", "watchexec", "nodemon", "ccache", "distcc", "sccache", "chronic"),
    *(
        "nix-shell",
        "sshpass",
        "mosh",
        "ansible",
        "ansible-playbook",
        "dumb-init",
        "tini",
        "dotenv",
        "foreman",
    ),
    *("honcho", "tox", "nox"),
    *("ld-linux-x86-64.so", "ld-linux-aarch64.so", "ld-linux.so", "ld-musl-x86_64.so", "ld-musl-aarch64.so"),
)
"""What runs its arguments, or what stands on its input."""
_CODE: Final = (
    *("awk", "gawk", "mawk", "nawk", "original-awk", "sed", "gsed", "ed", "red", "ex", "vi", "vim"),
    *("view", "nvim"),
    *("vimdiff", "rvim", "rview", "gvim", "nano", "pico", "emacs", "emacsclient", "dc", "bc", "m4"),
    *("gs", "rpm"),
    *("sqlite3", "psql", "mysql", "gnuplot", "octave", "R", "Rscript", "jshell", "ghci", "iex"),
    *("elixir", "erl"),
    *("tclsh", "wish", "osascript", "openssl", "gpg", "mail", "mailx", "mutt", "ftp", "lftp"),
    *("telnet", "nmap"),
    *("deno", "bun", "wget", "aria2c", "bsdtar", "cpio"),
    *("ipython", "jupyter", "java", "groovy", "scala", "kotlin", "convert", "magick", "mogrify", "identify"),
    *("composite", "montage", "exiftool"),
)
"""What takes code, or files with code, as an argument or from options without number."""
_INTERPRETERS: Final = (
    *("perl", "ruby", "node", "nodejs", "lua", "luajit", "php", "bash", "sh", "dash", "zsh", "ksh", "mksh"),
    *("fish", "csh", "tcsh", "ash", "rbash"),
)

_CONTAINERS: Final = Risky(runs=("run", "exec", "create", "build", "buildx", "compose", "plugin"))
_VERSIONS: Final = Risky(runs=("exec", "x", "run"))
_RUNNERS: Final[Mapping[str, Risky]] = Map(
    {
        **dict.fromkeys(("docker", "podman", "nerdctl"), _CONTAINERS),
        **dict.fromkeys(("poetry", "pdm", "hatch", "pipenv", "conda", "mamba", "bundle", "mix"), _VERSIONS),
        **dict.fromkeys(("direnv", "asdf", "mise", "pyenv", "rbenv", "nodenv", "rustup"), _VERSIONS),
        **dict.fromkeys(
            ("npm", "pnpm", "yarn"), Risky(runs=("exec", "x", "dlx"), words=("--script-shell*",))
        ),
        "uv": Risky(runs=("run", "tool", "x"), long=("--python",)),
        "pip": Risky(long=("--python",)),
        "coverage": Risky(runs=("run",), long=("--rcfile",)),
        "pre-commit": Risky(runs=("run", "try-repo")),
        "cargo": Risky(long=("--config",), runs=("rustc", "rustdoc")),
        "rustc": Risky(short="C", long=("--codegen",), words=("@*",)),
        "rustdoc": Risky(short="C", long=("--codegen", "--test-runtool", "--test-builder", "--runtool")),
        "go": Risky(
            runs=("run", "generate", "tool"),
            words=(*("-toolexec*", "-vettool*", "-exec*"), *("--toolexec*", "--vettool*", "--exec*")),
        ),
        "dotnet": Risky(runs=("run", "exec", "tool")),
        "cmake": Risky(runs=("-E", "-P"), words=("-P*",)),
        "kubectl": Risky(
            long=("--kubeconfig",), runs=("exec", "run", "debug", "cp", "edit", "attach", "plugin")
        ),
        "helm": Risky(long=("--post-renderer", "--kubeconfig"), runs=("plugin",)),
        "gh": Risky(short="w", long=("--web",), runs=("alias", "extension", "ext", "browse", "codespace")),
        "pylint": Risky(long=("--init-hook", "--load-plugins", "--rcfile")),
        "mypy": Risky(long=("--python-executable", "--config-file")),
        "pandoc": Risky(
            short="FLdo", long=("--filter", "--lua-filter", "--pdf-engine", "--defaults", "--output")
        ),
        "cloc": Risky(long=("--extract-with", "--config", "--out", "--report-file", "--diff-alignment")),
        "delta": Risky(long=("--pager",)),
        "xmllint": Risky(long=("--shell", "--output")),
    }
)
"""What has another program's words behind some of its own, or options that name one."""

SHIPPED: Final[Mapping[str, Risky]] = Map(
    {
        **dict.fromkeys((*_WRAPPERS, *_CODE), _EVERYTHING),
        **dict.fromkeys(_INTERPRETERS, _INTERPRETER),
        **{name: Risky(everything=True, script=True, module=True) for name in ("python", "pypy")},
        **dict.fromkeys(("fd", "fdfind"), _FD),
        **dict.fromkeys(("less", "more", "most", "pager"), _PAGER),
        **dict.fromkeys(("cc", "c++", "gcc", "g++", "clang", "clang++"), _COMPILER),
        **dict.fromkeys(("apt", "apt-get", "apt-cache", "apt-config"), _APT),
        **dict.fromkeys(("bat", "batcat"), _BAT),
        **{name: Risky(long=("--plugin",)) for name in ("nm", "ar", "ranlib")},
        "git": Risky(
            long=(
                *("--config-env", "--exec-path", "--git-dir", "--work-tree", "--output"),
                "--output-directory",
                *("--upload-pack", "--receive-pack", "--exec", "--ext-diff", "--textconv", "--filters"),
                *("--open-files-in-pager", "--extcmd", "--template", "--paginate", "--help"),
                "--show-signature",
            ),
            # Formats and keys to sort by for which it runs gpg.
            words=(
                *("*%G*", "*%+G*", "*%-G*", "*% G*", "*(signature*"),
                *("--sort=*signature*", "signature*", "-signature*"),
            ),
            early="cCp",
            valued="SGLnUlMBCX",
            subcommands=_git(),
        ),
        **_RUNNERS,
        "find": Risky(words=("-exec", "-execdir", "-ok", "-okdir", "-delete", "-fprint*", "-fls")),
        "sort": Risky(
            short="oT", long=("--output", "--compress-program", "--temporary-directory"), valued="kSt"
        ),
        "tar": Risky(
            short="IF",
            long=(
                *("--to-command", "--checkpoint-action", "--use-compress-program", "--info-script"),
                *("--new-volume-script", "--rsh-command", "--rmt-command"),
            ),
            valued="CfTXbgHKLNV",
            bundled=True,
        ),
        "zip": Risky(short="T", long=("--test", "--unzip-command"), valued="bntixP"),
        "rg": Risky(short="z", long=("--pre", "--hostname-bin", "--search-zip"), valued="ABCEMTdefgjmrt"),
        "ag": Risky(short="z", long=("--pager", "--search-zip")),
        "ack": Risky(long=("--pager", "--output", "--ackrc")),
        "man": Risky(
            short="PHCBlX", long=("--pager", "--html", "--config-file", "--local-file", "--gxditview")
        ),
        "info": Risky(short="o", long=("--output", "--restore", "--dribble", "--init-file")),
        "curl": Risky(
            short="oOKTDcJ",
            long=(
                *("--output", "--remote-name", "--config", "--upload-file", "--dump-header", "--cookie-jar"),
                *("--remote-header-name", "--trace", "--trace-ascii", "--stderr", "--libcurl"),
                "--output-dir",
                *("--remote-name-all", "--engine", "--hsts", "--alt-svc", "--etag-save"),
            ),
            valued="AbCdeEFHhmPQrtuUwxXyYz",
        ),
        "uniq": Risky(operands=1, valued="fsw"),
        "xxd": Risky(operands=1, short="r", valued="cglosR"),
        "tree": Risky(short="oR", long=("--output",), valued="LPIHT"),
        "date": Risky(short="s", long=("--set",), valued="dfrI"),
        "file": Risky(short="Cz", long=("--compile", "--uncompress"), valued="mFfeP"),
        "diff": Risky(long=("--output",), valued="CFILSUWxX"),
        "sdiff": Risky(short="o", long=("--output", "--diff-program"), valued="IWw"),
        "diff3": Risky(long=("--diff-program",)),
        "jq": Risky(short="L", long=("--library-path",)),
        "yq": Risky(short="is", long=("--inplace", "--split-exp")),
        "iconv": Risky(short="o", long=("--output",), valued="ft"),
        "base64": Risky(short="o", long=("--output",), valued="wi"),
        "shuf": Risky(short="o", long=("--output",), valued="in"),
        "split": Risky(long=("--filter",)),
        "install": Risky(short="s", long=("--strip", "--strip-program"), valued="gmotS"),
        "dpkg": Risky(long=("--pre-invoke", "--post-invoke", "--status-logger")),
        "tcpdump": Risky(short="zw", valued="BcCEFGijMrsTVyW"),
        "ip": Risky(short="b", words=("netns", "exec", "vrf", "-batch")),
        "hg": Risky(short="R", long=("--config", "--cwd", "--repository", "--debugger", "--pager")),
        "svn": Risky(long=("--diff-cmd", "--diff3-cmd", "--editor-cmd", "--config-option", "--config-dir")),
    }
)
