"""FedJAX: for_each_client, compiled (jit), on all cores; batches padded, padding masked."""

import sys
import time
from typing import Any

import fedjax
import jax
import jax.numpy as jnp
import numpy as np
from fedjax.core.client_datasets import EXAMPLE_MASK_KEY
from workload import Visits, finish

Tree = Any


def mean(total: Tree, rows: int) -> Tree:
    return jax.block_until_ready(jax.tree_util.tree_map(lambda one: one / rows, total))


def mlp(w: Tree, x: Tree) -> Tree:
    return jax.nn.relu(x @ w[0].T + w[1]) @ w[2].T + w[3]


def cnn(w: Tree, x: Tree) -> Tree:
    for kernel, bias in ((w[0], w[1]), (w[2], w[3])):
        axes = ("NCHW", "OIHW", "NCHW")
        x = jax.lax.conv_general_dilated(x, kernel, (1, 1), ((2, 2), (2, 2)), dimension_numbers=axes)
        x = jax.nn.relu(x + bias[None, :, None, None])
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
    return mlp(w[4:], x.reshape(x.shape[0], -1))


def main() -> None:
    visits = Visits(sys.argv[1])
    forward = mlp if visits.name == "a" else cnn

    def loss(w: Tree, batch: Tree) -> Tree:
        chosen = jnp.take_along_axis(jax.nn.log_softmax(forward(w, batch["x"])), batch["y"][:, None], 1)[:, 0]
        real = batch[EXAMPLE_MASK_KEY].astype(chosen.dtype)
        return -jnp.sum(chosen * real) / jnp.maximum(jnp.sum(real), 1.0)

    gradient = jax.grad(loss)

    def step(w: Tree, batch: Tree) -> Tree:
        return jax.tree_util.tree_map(lambda p, g: p - visits.lr * g, w, gradient(w, batch))

    with fedjax.for_each_client_backend("jit"):
        each = fedjax.for_each_client(lambda shared, own: shared, step, lambda shared, w: w)
    add = jax.jit(lambda total, w, n: jax.tree_util.tree_map(lambda a, b: a + n * b, total, w))
    w: Tree = [jnp.asarray(one) for one in visits.weights]
    ended = []
    labels = visits.y.astype(np.int32)
    rows = [
        fedjax.ClientDataset({"x": visits.X[visits.rows(v)], "y": labels[visits.rows(v)]})
        for v in range(len(visits.start) - 1)
    ]
    for number in range(visits.rounds):
        asked = [(v, rows[v].padded_batch(batch_size=visits.batch_size), None) for v in visits.round(number)]
        total: Tree = jax.tree_util.tree_map(jnp.zeros_like, w)
        for visit, trained in each(w, asked):
            total = add(total, trained, float(visits.count(visit)))
        w = mean(total, sum(visits.count(v) for v in visits.round(number)))
        ended.append(time.perf_counter())
    finish(sys.argv[2], ended, [np.asarray(one) for one in w])


if __name__ == "__main__":
    main()
