"""Write profiles in the formats of ONNX Runtime, recent and old, without ONNX Runtime."""

import json

MEMORY = {"mem_bytes_in_use": 1024, "mem_in_use_delta": 256, "mem_in_use_peak": 2048}
MEMORY |= {"mem_bytes_requested_in_use": 1000, "mem_arena_held": 4096, "mem_arena_held_delta": 0}


def session_event(name, start, duration, *, thread=7):
    place = {"pid": 1, "tid": thread, "dur": duration, "ts": start}
    return {"cat": "Session", **place, "ph": "X", "name": name, "args": {}}


def run_event(start, duration, *, thread=7):
    return session_event("model_run", start, duration, thread=thread)


def kernel_event(
    name,
    start,
    duration,
    *,
    op="Add",
    index=0,
    thread=7,
    inputs=(("float", (2,)),),
    outputs=(("float", (2,)),),
    provider="CPUExecutionProvider",
    memory=MEMORY,
):
    """Event of a kernel in the recent format: every value is a text but the types and shapes."""
    sizes = {"parameter_size": 0, "activation_size": 8, "output_size": 8, **memory}
    args = {
        "op_name": op,
        "provider": provider,
        "node_index": str(index),
        "thread_scheduling_stats": "",
        "input_type_shape": [{kind: list(shape)} for kind, shape in inputs],
        "output_type_shape": [{kind: list(shape)} for kind, shape in outputs],
        **{key: str(value) for key, value in sizes.items()},
    }
    event = session_event(f"{name}_kernel_time", start, duration, thread=thread)
    return {**event, "cat": "Node", "args": args}


def as_old_format(events):
    """Rewrite events as old versions wrote them: fences, integers, graph_index, no memory."""
    rewritten = []
    for event in events:
        if event["cat"] != "Node":
            rewritten.append(event)
            continue
        args, index = event["args"], int(event["args"]["node_index"])
        names = ("op_name", "provider", "input_type_shape", "output_type_shape")
        sizes = ("parameter_size", "activation_size", "output_size")
        old = {**{n: args[n] for n in names}, **{n: int(args[n]) for n in sizes}}
        old |= {"graph_index": index, "exec_plan_index": index}
        name = event["name"].removesuffix("_kernel_time")
        fence = {**event, "dur": 0, "args": {"op_name": args["op_name"]}}
        rewritten += [
            {**fence, "name": f"{name}_fence_before"},
            {**event, "args": old},
            {**fence, "name": f"{name}_fence_after", "ts": event["ts"] + event["dur"]},
        ]
    return rewritten


def write(path, events):
    """Write events as ONNX Runtime does: one per line."""
    path.write_text("[\n" + ",\n".join(map(json.dumps, events)) + "\n]\n", encoding="utf-8")
    return path


def two_runs():
    """Start-up, then two runs of two nodes."""
    return [
        session_event("model_loading_array", 1, 10),
        session_event("session_initialization", 12, 20),
        kernel_event("first", 41, 10, op="Exp"),
        kernel_event("second", 52, 5, op="Add", index=1),
        session_event("SequentialExecutor::Execute", 40, 19),
        run_event(39, 21),
        kernel_event("first", 71, 4, op="Exp"),
        kernel_event("second", 76, 3, op="Add", index=1),
        session_event("SequentialExecutor::Execute", 70, 10),
        run_event(70, 10),
    ]
