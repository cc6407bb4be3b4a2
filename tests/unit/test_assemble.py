"""Messages from streams, whatever the pieces in which a stream arrives."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnd.rules.assemble import AssembledCall, AssembledMessage, Assembler, StreamUnfinished
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2

TOOL_USE, END_TURN, MAX_TOKENS = (
    common.STOP_REASON_TOOL_USE,
    common.STOP_REASON_END_TURN,
    common.STOP_REASON_MAX_TOKENS,
)


@dataclass(frozen=True)
class Said:
    """One event of a stream: `text`, `thinking` and `arguments` can be cut into pieces, others cannot."""

    kind: str
    text: str = ""
    token: bytes = b""
    key: int = 0


def fed(
    stream: list[Said], stop: common.StopReason.ValueType | None = TOOL_USE
) -> tuple[Assembler, list[event_pb2.Delta]]:
    assembler = Assembler()
    deltas: list[event_pb2.Delta | None] = []
    for said in stream:
        match said.kind:
            case "text":
                deltas.append(assembler.text(said.text))
            case "thinking":
                deltas.append(assembler.thinking(said.text))
            case "signature":
                assembler.signature(said.token)
            case "redacted":
                assembler.redacted(said.token)
            case "start":
                deltas.append(assembler.tool_start(said.key, f"v{said.key}", said.text))
            case "arguments":
                deltas.append(assembler.tool_arguments(said.key, said.text))
            case "done":
                assembler.tool_done(said.key)
            case _:
                raise AssertionError(said)
    if stop is not None:
        assembler.stop(stop, "vendor's word")
    return assembler, [delta for delta in deltas if delta is not None]


def message(stream: list[Said], stop: common.StopReason.ValueType = TOOL_USE) -> AssembledMessage:
    return fed(stream, stop)[0].message()


def called(
    arguments: str, *, done: bool = True, stop: common.StopReason.ValueType = TOOL_USE
) -> AssembledCall:
    stream = [Said("start", "read_file"), Said("arguments", arguments), *([Said("done")] if done else [])]
    (call,) = message(stream, stop).calls
    return call


TEXTS = st.text(alphabet='ab{}[]":\\\ud83d\ude00é', min_size=1, max_size=12)
ARGUMENTS = TEXTS | st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=5), max_size=3).map(
    json.dumps
)


@st.composite
def streams(draw: st.DrawFn) -> list[Said]:
    stream: list[Said] = []
    keys = 0
    for kind in draw(
        st.lists(st.sampled_from(["text", "thinking", "signature", "redacted", "call", "more"]), max_size=8)
    ):
        match kind:
            case "text" | "thinking":
                stream.append(Said(kind, draw(TEXTS)))
            case "signature" | "redacted":
                stream.append(Said(kind, token=draw(st.binary(min_size=1, max_size=4))))
            case "call":
                stream.append(Said("start", draw(st.sampled_from(["read_file", "run"])), key=keys))
                keys += 1
            case _ if keys:
                stream.append(Said("arguments", draw(ARGUMENTS), key=draw(st.integers(0, keys - 1))))
    return [*stream, *(Said("done", key=key) for key in range(keys) if draw(st.booleans()))]


def cut(draw: st.DrawFn, stream: list[Said]) -> list[Said]:
    """The same stream in other pieces, empty ones among them."""
    pieces: list[Said] = []
    for said in stream:
        if said.kind not in ("text", "thinking", "arguments"):
            pieces.append(said)
            continue
        places = sorted(draw(st.lists(st.integers(0, len(said.text)), max_size=4)))
        for start, end in zip([0, *places], [*places, len(said.text)], strict=True):
            pieces.append(Said(said.kind, said.text[start:end], key=said.key))
    return pieces


@pytest.mark.req("MODEL-02")
@given(st.data())
def test_any_chunking_of_a_stream_gives_the_same_message(data: st.DataObject) -> None:
    stream = data.draw(streams())
    stop = data.draw(st.sampled_from([TOOL_USE, END_TURN, MAX_TOKENS]))
    pieces = data.draw(st.composite(cut)(stream))

    assert message(pieces, stop) == message(stream, stop)
    assert fed(pieces, None)[0].partial() == fed(stream, None)[0].partial()


@pytest.mark.req("MODEL-02", "MODEL-14")
@given(st.data())
def test_what_was_shown_is_what_the_message_says(data: st.DataObject) -> None:
    stream = data.draw(st.composite(cut)(data.draw(streams())))
    assembler, deltas = fed(stream)
    made = assembler.message()

    shown: dict[int, str] = {}
    for delta in deltas:
        delta.SerializeToString()
        shown[delta.index] = (
            shown.get(delta.index, "") + delta.text + delta.thinking + delta.tool_call.arguments
        )
    for index, block in enumerate(made.blocks):
        block.SerializeToString()
        prose = block.text.text or block.thinking.thinking
        if prose:
            assert prose in (shown.get(index, ""), shown.get(index, "") + "\ufffd")


@pytest.mark.req("MODEL-02")
@given(streams())
def test_blocks_keep_the_order_of_the_stream_and_neighbours_of_a_kind_are_one(stream: list[Said]) -> None:
    made = message(stream)

    kinds = [block.WhichOneof("block") for block in made.blocks]
    assert not any(one == other == "text" for one, other in pairwise(kinds))
    begun = [said.text for said in stream if said.kind == "start"]
    assert [call.wire_name for call in made.calls] == begun
    assert [block.tool_use.wire_name for block in made.blocks if block.HasField("tool_use")] == begun
    tokens = [said.token for said in stream if said.kind in ("signature", "redacted")]
    kept = [block.thinking.signature or block.redacted_thinking.data for block in made.blocks]
    assert [token for token in kept if token] == tokens


@pytest.mark.req("MODEL-02")
def test_a_message_of_everything() -> None:
    made = message(
        [
            Said("thinking", "Let me "),
            Said("thinking", "see."),
            Said("signature", token=b"\x00sig"),
            Said("thinking", "And more."),
            Said("redacted", token=b"\xffhidden"),
            Said("text", "I will "),
            Said("text", "look."),
            Said("start", "read_file", key=4),
            Said("arguments", '{"path": ', key=4),
            Said("start", "run", key=2),
            Said("arguments", '"a.txt"}', key=4),
            Said("done", key=4),
            Said("arguments", '{"n": 9007199254740993}', key=2),
            Said("done", key=2),
            Said("text", "Done."),
        ]
    )

    thinking = common.ThinkingBlock
    assert made.blocks == (
        common.ContentBlock(thinking=thinking(thinking="Let me see.", signature=b"\x00sig")),
        common.ContentBlock(thinking=thinking(thinking="And more.")),
        common.ContentBlock(redacted_thinking=common.RedactedThinkingBlock(data=b"\xffhidden")),
        common.ContentBlock(text=common.TextBlock(text="I will look.")),
        common.ContentBlock(
            tool_use=common.ToolUseBlock(
                vendor_call_id="v4", wire_name="read_file", input=b'{"path": "a.txt"}'
            )
        ),
        common.ContentBlock(
            tool_use=common.ToolUseBlock(
                vendor_call_id="v2", wire_name="run", input=b'{"n": 9007199254740993}'
            )
        ),
        common.ContentBlock(text=common.TextBlock(text="Done.")),
    )
    assert [call.block for call in made.calls] == [4, 5]
    assert (made.stop_reason, made.vendor_stop_reason, made.at_output_limit) == (
        TOOL_USE,
        "vendor's word",
        False,
    )


def test_ids_and_tools_are_given_in_order_and_the_message_stays_as_it_was() -> None:
    made = message(
        [Said("start", "a"), Said("done"), Said("text", "x"), Said("start", "b", key=1), Said("done", key=1)]
    )
    minted = iter(["c1", "c2"])
    bound = made.bound(lambda call: (next(minted), "workspace", call.wire_name.upper()))

    uses = [block.tool_use for block in bound if block.HasField("tool_use")]
    assert [(use.call_id, use.provider, use.tool) for use in uses] == [
        ("c1", "workspace", "A"),
        ("c2", "workspace", "B"),
    ]
    assert not made.blocks[0].tool_use.call_id


@pytest.mark.req("MODEL-02")
def test_empty_pieces_are_nothing() -> None:
    stream = [
        Said("text", ""),
        Said("thinking", "a"),
        Said("text", ""),
        Said("thinking", "b"),
        Said("thinking", ""),
    ]

    assert fed(stream, END_TURN)[0].message() == message([Said("thinking", "ab")], END_TURN)
    assert len(fed(stream)[1]) == 2


def test_vendors_may_repeat_ids_leave_them_out_and_use_a_key_again() -> None:
    assembler = Assembler()
    for name in ("one", "two"):
        assembler.tool_start(0, "same", name)
        assembler.tool_arguments(0, f'{{"name": "{name}"}}')
        assembler.tool_done(0)
    assembler.tool_start(1, "", "three")
    assembler.tool_done(1)
    assembler.stop(TOOL_USE)

    calls = assembler.message().calls
    assert [call.vendor_call_id for call in calls] == ["same", "same", ""]
    assert [call.input for call in calls] == [b'{"name": "one"}', b'{"name": "two"}', b"{}"]
    assert not any(call.truncated for call in calls)


def test_arguments_of_a_call_that_never_began_make_one_without_a_name() -> None:
    assembler = Assembler()
    assembler.tool_done(7)
    assembler.tool_arguments(7, "{}")
    assembler.tool_done(7)
    assembler.stop(TOOL_USE)

    (call,) = assembler.message().calls
    assert (call.wire_name, call.input, call.truncated) == ("", b"{}", False)


@pytest.mark.req("MODEL-02")
@pytest.mark.parametrize("arguments", ["", " ", "\n\t"])
def test_no_arguments_are_an_empty_object(arguments: str) -> None:
    call = called(arguments)

    assert (call.input, call.raw_arguments, call.truncated) == (b"{}", "", False)


@pytest.mark.req("MODEL-02")
@pytest.mark.parametrize(
    "arguments",
    [
        "not json",
        "{'a': 1}",
        '{"a": 1,}',
        '{"a": NaN}',
        '{"a": 1}}',
        '{"a": 1]',
        "}{",
        '{"a": "b"} {"c": "d"}',
        "tru",
    ],
)
def test_arguments_that_are_not_json_are_kept_as_they_came(arguments: str) -> None:
    call = called(arguments)

    assert (call.input, call.raw_arguments, call.truncated) == (b"", arguments, False)
    assert message([Said("start", "x"), Said("arguments", arguments), Said("done")]).blocks[0].tool_use == (
        common.ToolUseBlock(vendor_call_id="v0", wire_name="x", raw_arguments=arguments)
    )


WHOLE = '{"command": "rm -rf /tmp/x", "list": [1, {"a": "b\\"c"}], "s": "\\\\"}'


@pytest.mark.req("MODEL-13", "T01")
@pytest.mark.parametrize("stop", [MAX_TOKENS, TOOL_USE, END_TURN])
@pytest.mark.parametrize("length", range(1, len(WHOLE)))
def test_arguments_cut_anywhere_are_truncated_whatever_the_stop_reason_claims(
    length: int, stop: common.StopReason.ValueType
) -> None:
    call = called(WHOLE[:length], stop=stop)

    assert call.truncated
    assert (call.input, call.raw_arguments) == (b"", WHOLE[:length])


@pytest.mark.req("MODEL-13")
def test_a_call_that_never_ended_is_truncated_even_if_it_reads_whole() -> None:
    for arguments in (WHOLE, ""):
        call = called(arguments, done=False)
        assert (call.truncated, call.input, call.raw_arguments) == (True, b"", arguments)
    assert not called(WHOLE).truncated


@pytest.mark.req("MODEL-13", "LOOP-12")
def test_at_the_output_limit_no_call_of_the_message_may_run() -> None:
    stream = [
        Said("start", "a"),
        Said("arguments", WHOLE),
        Said("done"),
        Said("start", "b", key=1),
        Said("done", key=1),
    ]
    stopped = message(stream, MAX_TOKENS)
    counted = fed(stream)[0].message(output_at_limit=True)

    for made in (stopped, counted):
        assert made.at_output_limit
        assert [call.truncated for call in made.calls] == [True, True]
        assert made.calls[0].input == WHOLE.encode(), "what is stored and sent again is valid"
    assert not fed([Said("text", "Done.")], END_TURN)[0].message(output_at_limit=True).at_output_limit
    assert message([Said("text", "Done")], MAX_TOKENS).at_output_limit


@pytest.mark.req("MODEL-14", "T05")
def test_a_lone_surrogate_is_cleaned_once_and_marked() -> None:
    made = message(
        [Said("text", "a\ud800b"), Said("thinking", "c\udc00"), Said("text", "\ud83d"), Said("text", "x")]
    )

    assert made.blocks == (
        common.ContentBlock(text=common.TextBlock(text="a\ufffdb", cleaned=True)),
        common.ContentBlock(thinking=common.ThinkingBlock(thinking="c\ufffd", cleaned=True)),
        common.ContentBlock(text=common.TextBlock(text="\ufffdx", cleaned=True)),
    )


@pytest.mark.req("MODEL-14", "T05")
def test_a_character_cut_in_half_is_whole_again_and_not_marked() -> None:
    assembler = Assembler()
    deltas = [assembler.text(piece) for piece in ("a\ud83d", "\ude00", "b")]
    assembler.stop(END_TURN)

    assert assembler.message().blocks == (
        common.ContentBlock(text=common.TextBlock(text="a\N{GRINNING FACE}b")),
    )
    assert [delta.text if delta else None for delta in deltas] == ["a", "\N{GRINNING FACE}", "b"]


@pytest.mark.req("MODEL-14", "T05")
def test_half_a_character_at_the_end_is_replaced_also_where_the_stream_was_cut() -> None:
    assembler = fed([Said("text", "a\ud83d")], None)[0]

    expected = (common.ContentBlock(text=common.TextBlock(text="a\ufffd", cleaned=True)),)
    assert assembler.partial().blocks == expected
    assert assembler.partial().blocks == expected


@pytest.mark.req("MODEL-14", "T05")
@pytest.mark.parametrize(
    ("arguments", "cleaned"),
    [
        ('{"a": "\\ud800"}', '{"a": "\\ufffd"}'),
        ('{"a": "\\uDC00\\ud83d"}', '{"a": "\\ufffd\\ufffd"}'),
        ('{"a": "\\ud83d\\ud83d\\ude00"}', '{"a": "\\ufffd\\ud83d\\ude00"}'),
        ('{"a": "\ud800"}', '{"a": "\ufffd"}'),
        ('{"\\udfff": 1}', '{"\\ufffd": 1}'),
    ],
)
def test_lone_surrogates_in_arguments_are_cleaned_however_they_are_written(
    arguments: str, cleaned: str
) -> None:
    call = called(arguments)

    assert call.input == cleaned.encode()
    assert call.cleaned
    json.loads(call.input)["a" if '"a"' in cleaned else "\ufffd"]


@pytest.mark.parametrize(
    "arguments", ['{"a": "\\ud83d\\ude00"}', '{"a": "\\\\ud800"}', '{"a": "\\\\\\\\ud800 \\n"}']
)
def test_escapes_that_are_right_stay_as_they_were_written(arguments: str) -> None:
    call = called(arguments)

    assert (call.input, call.cleaned) == (arguments.encode(), False)


def test_names_ids_and_reasons_are_cleaned_too() -> None:
    assembler = Assembler()
    assembler.tool_start(0, "id\ud800", "na\ud800me").SerializeToString()
    assembler.tool_done(0)
    assembler.stop(TOOL_USE, "why\ud800")
    made = assembler.message()

    assert (made.calls[0].vendor_call_id, made.calls[0].wire_name) == ("id\ufffd", "na\ufffdme")
    assert made.vendor_stop_reason == "why\ufffd"


@pytest.mark.req("MODEL-02")
@pytest.mark.parametrize(
    ("stream", "empty"),
    [
        ([], True),
        ([Said("text", "")], True),
        ([Said("text", " \n")], True),
        ([Said("thinking", "Hm.")], True),
        ([Said("redacted", token=b"x")], True),
        ([Said("text", "Yes.")], False),
        ([Said("start", "x")], False),
    ],
)
def test_an_answer_that_is_none_can_be_told(stream: list[Said], empty: bool) -> None:
    assert message(stream, END_TURN).empty is empty


@pytest.mark.req("MODEL-05", "T02")
def test_a_stream_without_a_stop_is_no_message_and_its_calls_never_exist() -> None:
    assembler, _ = fed(
        [Said("text", "I wi"), Said("start", "x"), Said("arguments", "{}"), Said("done")], None
    )

    assert not assembler.stopped
    with pytest.raises(StreamUnfinished):
        assembler.message()
    partial = assembler.partial()
    assert partial.blocks == (common.ContentBlock(text=common.TextBlock(text="I wi")),)
    assert (partial.calls, partial.stop_reason) == ((), common.STOP_REASON_CANCELLED)
