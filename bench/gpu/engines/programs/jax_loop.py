"""JAX: training steps of a multilayer perceptron (8 layers, 4096 wide, bf16), compiled, as fast as they go.

usage: jax_loop.py CONTROL_FILE SAMPLES_FILE
"""
# mypy: ignore-errors

from __future__ import annotations

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
from bench.gpu.engines.programs import steer

LAYERS, WIDTH, BATCH = 8, 4096, 4096


def loss(weights, given):
    for weight in weights:
        given = jax.nn.gelu(given @ weight)
    return jnp.mean(jnp.square(given.astype(jnp.float32)))


@jax.jit
def step(weights, given):
    cost, slopes = jax.value_and_grad(loss)(weights, given)
    return cost, [weight - 1e-3 * slope for weight, slope in zip(weights, slopes, strict=True)]


def main() -> None:
    keys = jax.random.split(jax.random.key(0), LAYERS + 1)
    weights = [0.02 * jax.random.normal(key, (WIDTH, WIDTH), jnp.bfloat16) for key in keys[1:]]
    given = jax.random.normal(keys[0], (BATCH, WIDTH), jnp.bfloat16)

    def turn():
        nonlocal weights
        cost, weights = step(weights, given)
        cost.item()  # as a program does that prints it
        return 1.0, []

    for _ in range(3):
        turn()
    steer.ready()
    steer.loop(steer.Control(Path(sys.argv[1])), steer.Samples(Path(sys.argv[2])), turn)


if __name__ == "__main__":
    main()
