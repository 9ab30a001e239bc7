"""PyTorch's losses at many places in the data, in f32 and bf16: MODEL/places.json of tests/data/models.

places_make.py FOLDER MODEL...

Place p begins STRIDE * p tokens into the model's tokens.bin, which goes on at its beginning. The steps are those of
curve.json. In bf16 the masters and the sum of gradients over microbatches are f32, and of each kind of attention the
distance to f32 is kept: the root of the mean square difference of the losses.
"""
import json
import pathlib
import sys

import numpy
import torch
import transformers

PLACES, STRIDE = 16, 313  # no multiple of a row: other rows, not the same ones in another order
MICROBATCHES = 4


def losses(folder, place, dtype, attention, microbatches):
    given = json.loads((folder / "curve.json").read_text())
    rows, length = given["B"], given["T"]
    tokens = numpy.roll(numpy.fromfile(folder / "tokens.bin", numpy.uint16).astype(numpy.int64), -STRIDE * place)
    load = transformers.AutoModelForCausalLM.from_pretrained
    model = load(folder, dtype=dtype, attn_implementation=attention).train()
    params = dict(model.named_parameters())
    masters = {name: param.detach() for name, param in load(folder, dtype=torch.float32).named_parameters()}
    groups = [dict(params=[master for master in masters.values() if (master.dim() >= 2) == decays],
                   weight_decay=given["weight_decay"] if decays else 0) for decays in (True, False)]
    optimizer = torch.optim.AdamW(groups, lr=given["lr"], betas=given["betas"], eps=given["eps"])
    curve = []
    for step in range(given["steps"]):
        first = [(step * rows + row) * length for row in range(rows)]
        batch = torch.from_numpy(numpy.stack([tokens[at:at + length + 1] for at in first]))
        curve.append(0.0)
        for master in masters.values():
            master.grad = torch.zeros_like(master)
        for part in batch.chunk(microbatches):
            logits = model(part[:, :-1], use_cache=False).logits.float()
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten()) / microbatches
            loss.backward()
            curve[-1] += loss.item()
            for name, param in params.items():
                masters[name].grad += param.grad.float()
                param.grad = None
        torch.nn.utils.clip_grad_norm_(masters.values(), given["clip_global_norm"])
        optimizer.step()
        with torch.no_grad():
            for name, param in params.items():
                param.copy_(masters[name])
    return numpy.array(curve)


def write(folder):
    lines, distances = [], {"eager": [], "sdpa": []}
    for place in range(PLACES):
        exact = losses(folder, place, torch.float32, "eager", 1)
        lines.append(json.dumps([round(loss, 6) for loss in exact]))
        for attention, found in distances.items():
            rounded = losses(folder, place, torch.bfloat16, attention, MICROBATCHES)
            found.append(round(float(numpy.sqrt(numpy.mean((rounded - exact) ** 2))), 7))
        print(folder.name, place, {attention: found[-1] for attention, found in distances.items()}, flush=True)
    (folder / "places.json").write_text('{"stride": %d,\n "f32": [\n  %s],\n "bf16": {\n  "eager": %s,\n  "sdpa": %s}}\n' % (
        STRIDE, ",\n  ".join(lines), json.dumps(distances["eager"]), json.dumps(distances["sdpa"])))


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    for name in sys.argv[2:]:
        write(pathlib.Path(sys.argv[1]) / name)
