"""Recurrent networks, step by step: RNN, GRU and LSTM."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from ortmeter.errors import RefusedError
from ortmeter.operators.late import Tensor, torch
from ortmeter.operators.movement import reverse_sequence
from ortmeter.operators.registry import family, find_kernel, kernel

Activation = Callable[[Tensor], Tensor]

declare = family("other")
declare("GRU LSTM RNN")

_OPERATORS = (
    *("Relu", "Tanh", "Sigmoid", "Softsign", "Softplus"),
    *("Elu", "LeakyRelu", "ThresholdedRelu", "HardSigmoid"),
)


@cache
def _activations() -> dict[str, Any]:
    return {name.lower(): find_kernel("", name, 22) for name in _OPERATORS} | {
        "affine": lambda x, *, alpha=1.0, beta=0.0: x * alpha + beta,
        "scaledtanh": lambda x, *, alpha=1.0, beta=1.0: torch.tanh(x * beta) * alpha,
    }


def _activations_of(
    names: list[str] | None,
    default: tuple[str, ...],
    directions: int,
    alphas: list[float] | None,
    betas: list[float] | None,
) -> list[list[Activation]]:
    """Return the functions of each direction; those that have alpha or beta take the next ones."""
    given = {"alpha": iter(alphas or ()), "beta": iter(betas or ())}
    functions: list[Activation] = []
    for name in names or default * directions:
        if name.lower() not in _activations():
            accepted = ", ".join(_activations())
            raise RefusedError(f"activation: given {name!r}; accepted: {accepted}")
        function = _activations()[name.lower()]
        parameters = inspect.signature(function).parameters
        options = {
            option: next(numbers, parameters[option].default)
            for option, numbers in given.items()
            if option in parameters
        }
        functions.append(partial(function, **options) if options else function)
    count = len(default)
    return [functions[i * count : (i + 1) * count] for i in range(directions)]


State = tuple[Tensor, ...]
Cell = Callable[[Tensor, State], State]


@dataclass(frozen=True)
class _Weights:
    """What one direction multiplies and adds; the bias is that of the input, then of the state."""

    w: Tensor
    r: Tensor
    input_bias: Tensor
    state_bias: Tensor
    peephole: Tensor | None = None

    def gates(self, x: Tensor, h: Tensor) -> Tensor:
        return x @ self.w.t() + h @ self.r.t() + self.input_bias + self.state_bias


def _weights(w: Tensor, r: Tensor, bias: Tensor | None, peephole: Tensor | None) -> list[_Weights]:
    if bias is None:
        bias = w.new_zeros(w.shape[0], 2 * w.shape[1])
    of_input, of_state = bias.chunk(2, 1)
    return [
        _Weights(w[i], r[i], of_input[i], of_state[i], None if peephole is None else peephole[i])
        for i in range(w.shape[0])
    ]


def _clamp(x: Tensor, clip: float | None) -> Tensor:
    return x if clip is None else x.clamp(-clip, clip)


def _rnn_cell(weights: _Weights, functions: list[Activation], clip: float | None) -> Cell:
    def step(x: Tensor, state: State) -> State:
        return (functions[0](_clamp(weights.gates(x, state[0]), clip)),)

    return step


def _gru_cell(
    weights: _Weights,
    functions: list[Activation],
    clip: float | None,
    *,
    linear_before_reset: int = 0,
) -> Cell:
    """Gates are update, reset, hidden."""
    inner, outer = functions
    r_hidden = weights.r.chunk(3)[2].t()
    bias_hidden = weights.state_bias.chunk(3)[2]

    def step(x: Tensor, state: State) -> State:
        (h,) = state
        from_x = (x @ weights.w.t() + weights.input_bias).chunk(3, -1)
        from_h = (h @ weights.r.t() + weights.state_bias).chunk(3, -1)
        update = inner(_clamp(from_x[0] + from_h[0], clip))
        reset = inner(_clamp(from_x[1] + from_h[1], clip))
        gated = reset * from_h[2] if linear_before_reset else (reset * h) @ r_hidden + bias_hidden
        hidden = outer(_clamp(from_x[2] + gated, clip))
        return ((1 - update) * hidden + update * h,)

    return step


def _lstm_cell(
    weights: _Weights, functions: list[Activation], clip: float | None, *, input_forget: int = 0
) -> Cell:
    """Gates are input, output, forget, cell."""
    inner, candidate, outer = functions
    peep_in, peep_out, peep_forget = (
        (0, 0, 0) if weights.peephole is None else weights.peephole.chunk(3)
    )

    def step(x: Tensor, state: State) -> State:
        h, c = state
        enter, leave, forget, cell = weights.gates(x, h).chunk(4, -1)
        enter = inner(_clamp(enter + peep_in * c, clip))
        forget = 1 - enter if input_forget else inner(_clamp(forget + peep_forget * c, clip))
        c = forget * c + enter * candidate(_clamp(cell, clip))
        leave = inner(_clamp(leave + peep_out * c, clip))
        return leave * outer(c), c

    return step


def _reverse(x: Tensor, lengths: Tensor | None) -> Tensor:
    return x.flip(0) if lengths is None else reverse_sequence(x, lengths)


def _run(x: Tensor, lengths: Tensor | None, state: State, cell: Cell) -> tuple[Tensor, State]:
    outputs = []
    for time, step in enumerate(x.unbind(0)):
        after = cell(step, state)
        if lengths is None:
            state = after
            outputs.append(after[0])
            continue
        active = (time < lengths).unsqueeze(-1)
        state = tuple(torch.where(active, new, old) for new, old in zip(after, state, strict=True))
        outputs.append(torch.where(active, after[0], 0))
    return torch.stack(outputs), state


def _run_directions(
    x: Tensor,
    lengths: Tensor | None,
    states: list[Tensor],
    cells: list[Cell],
    *,
    direction: str,
    layout: int,
) -> tuple[Tensor, ...]:
    """Run each direction; states are (directions, batch, hidden), or batch first with layout 1."""
    if layout:
        x, states = x.transpose(0, 1), [state.transpose(0, 1) for state in states]
    outputs, finals = [], []
    for i, cell in enumerate(cells):
        backward = direction == "reverse" or i == 1
        steps = _reverse(x, lengths) if backward else x
        y, final = _run(steps, lengths, tuple(state[i] for state in states), cell)
        outputs.append(_reverse(y, lengths) if backward else y)
        finals.append(final)
    y = torch.stack(outputs, 2 if layout else 1)
    last = [torch.stack(parts, 1 if layout else 0) for parts in zip(*finals, strict=True)]
    return (y.transpose(0, 1) if layout else y, *last)


def _initial(given: Tensor | None, x: Tensor, r: Tensor, layout: int) -> Tensor:
    if given is not None:
        return given
    batch = x.shape[0] if layout else x.shape[1]
    shape = (batch, r.shape[0]) if layout else (r.shape[0], batch)
    return x.new_zeros(*shape, r.shape[2])


def _register_network(
    op_type: str, cell: Callable[..., Cell], default: tuple[str, ...], n_states: int = 1
) -> None:
    @kernel(op_type, since=7, options_of=cell)
    def run(  # noqa: PLR0917 - the inputs of the operators, the last two of LSTM only
        x: Tensor,
        w: Tensor,
        r: Tensor,
        bias: Tensor | None = None,
        lengths: Tensor | None = None,
        initial_h: Tensor | None = None,
        initial_c: Tensor | None = None,
        peephole: Tensor | None = None,
        *,
        activation_alpha: list[float] | None = None,
        activation_beta: list[float] | None = None,
        activations: list[str] | None = None,
        clip: float | None = None,
        direction: str = "forward",
        hidden_size: int | None = None,
        layout: int = 0,
        **variant: int,
    ) -> tuple[Tensor, ...]:
        del hidden_size
        functions = _activations_of(
            activations, default, w.shape[0], activation_alpha, activation_beta
        )
        cells = [
            cell(*pair, clip, **variant)
            for pair in zip(_weights(w, r, bias, peephole), functions, strict=True)
        ]
        states = [_initial(given, x, r, layout) for given in (initial_h, initial_c)[:n_states]]
        return _run_directions(x, lengths, states, cells, direction=direction, layout=layout)


_register_network("RNN", _rnn_cell, ("Tanh",))
_register_network("GRU", _gru_cell, ("Sigmoid", "Tanh"))
_register_network("LSTM", _lstm_cell, ("Sigmoid", "Tanh", "Tanh"), n_states=2)
