"""Convert nine trained models to fewer bits, and check them on inputs that did not calibrate.

``python _benchmarks/conversions.py --models DIR --budget 60 --only v4_det,magika`` prints the size,
the largest error over the largest value, the decisions kept and, unless budget is 0, speedups.
"""

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from PIL import Image, ImageDraw, ImageFont
from real_aa import download

import ortmeter
from ortmeter.errors import OrtMeterError
from ortmeter.runtime.precision import convert_precision
from ortmeter.runtime.sessions import make_session

WAYS = ("float16", "dynamic U8S8", "dynamic channels", "QDQ U8S8", "QDQ channels", "weights 8 bits")
DATA = Path(mpl.get_data_path())
FILES = sorted(path for path in DATA.parent.rglob("*.*") if path.is_file())
RNG = np.random.default_rng(0)


def text(width: int, height: int, lines: int = 1) -> Image.Image:
    image = Image.new("RGB", (width, height), tuple(RNG.integers(150, 256, 3)))
    for line in range(lines):
        name = RNG.choice(["DejaVuSans", "DejaVuSerif", "DejaVuSansMono-Bold"])
        font = ImageFont.truetype(str(DATA / f"fonts/ttf/{name}.ttf"), int(0.6 * height / lines))
        word = "".join(RNG.choice(list("abcdefghkmnprstuvwxyz 0123456789"), RNG.integers(4, 12)))
        ImageDraw.Draw(image).text((6, line * height / lines + 4), word, 0, font)
    return image


def photograph(size: int) -> Image.Image:
    whole, side = Image.open(DATA / "sample_data" / "grace_hopper.jpg"), RNG.integers(250, 500)
    x, y = (RNG.integers(0, most - side) for most in whole.size)
    return whole.resize((size, size), box=(x, y, x + side, y + side))


def pixels(image: Image.Image, scale: float = 127.5, shift: float = 1) -> np.ndarray:
    array = np.asarray(image, np.float32).reshape(image.height, image.width, -1)
    return np.ascontiguousarray(array.transpose(2, 0, 1)[None, ::-1] / scale - shift)


def file_bytes() -> np.ndarray:
    content = RNG.choice(FILES).read_bytes().strip()
    first, last = content[:1024], content[-1024:]
    return np.int32([[*first, *[256] * (2048 - len(first) - len(last)), *last]])


def vowels(session: Any) -> Iterator[dict[str, np.ndarray]]:
    state, context = np.zeros((2, 1, 128), np.float32), np.zeros((1, 64), np.float32)
    while True:
        sound, time = RNG.normal(0, 0.003, 5120), np.arange(5120) / 16000
        loud, formants = RNG.choice([0, 0.1, 0.3]), RNG.uniform([300, 900, 2200], [800, 2000, 3000])
        for tone in RNG.uniform(90, 250) * np.arange(1, 30):
            gain = 0.02 + np.exp(-(((tone - formants) / 120) ** 2)).sum()
            sound += loud * gain * np.sin(2 * np.pi * tone * time)
        for chunk in sound.astype(np.float32).reshape(10, 1, 512):
            feeds = {"input": np.hstack([context, chunk]), "state": state, "sr": np.array(16000)}
            yield feeds
            (_, state), context = session.run(None, feeds), chunk[:, -64:]


def characters(y: np.ndarray) -> list[int]:
    best = y.reshape(-1, y.shape[-1]).argmax(axis=-1)
    return [int(b) for b, before in zip(best, [0, *best], strict=False) if b and b != before]


#: Part of the name of a file -> its inputs, and what is decided with its output.
MODELS: dict[str, tuple[Callable[[], Any] | None, Callable[[np.ndarray], Any]]] = {
    "v4_det": (lambda: pixels(text(320, 320, 6)), lambda y: y.round().mean().round(2)),
    "v4_rec": (lambda: pixels(text(320, 48)), characters),
    "cls_infer": (lambda: pixels(text(192, 48).rotate(180 * RNG.integers(2))), np.argmax),
    "silero_vad.onnx": (None, np.round),
    "magika": (file_bytes, np.argmax),
    "320n": (lambda: pixels(photograph(320), 255, 0), lambda y: y[0, 4:].argmax()),
    "common.onnx": (lambda: pixels(text(160, 64).convert("L")), characters),
    "common_det": (lambda: pixels(text(416, 416, 5), 1, 0), lambda y: y[0, :, 4].argmax()),
    "common_old": (lambda: pixels(text(160, 64).convert("L")), characters),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--only", default=",".join(MODELS))
    parser.add_argument("--budget", type=float, default=60)
    args = parser.parse_args()
    download(args.models)
    for part in args.only.split(","):
        (file,), (draw, decide) = args.models.glob(f"*{part}*"), MODELS[part]
        session = make_session(file, provider="cpu")
        name, sound = session.get_inputs()[0].name, vowels(session)
        samples = [{name: draw()} if draw else next(sound) for _ in range(32)]
        held, kept = samples[8:], {"float32": file}
        expected = [session.run(None, feeds)[0] for feeds in held]
        for way in WAYS:
            try:
                kept[way] = convert_precision(file, way, samples[:8])
            except OrtMeterError as error:
                print(f"{file.stem} | {error}", flush=True)
                continue
            converted = make_session(kept[way], provider="cpu")
            pairs = [(y, converted.run(None, f)[0]) for y, f in zip(expected, held, strict=True)]
            worst = max(np.abs(a - b).max() / np.abs(a).max() for a, b in pairs)
            same = sum(bool(decide(a) == decide(b)) for a, b in pairs)
            share = kept[way].ByteSize() / file.stat().st_size
            print(f"{file.stem} | {way} | {share:.0%} | {worst:.2g} | {same} of 24", flush=True)
        if args.budget:
            found = ortmeter.bench(kept, held[0], provider="cpu", budget_s=args.budget)
            print(*(f"{c.subject}: {c.effect}" for c in found.speedups()), sep="\n", flush=True)


if __name__ == "__main__":
    main()
