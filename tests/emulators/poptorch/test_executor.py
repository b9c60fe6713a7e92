"""Weights between host and device, the compiled signature, attaching and files."""

import copy
import io
import logging

import poptorch
import pytest
import torch


@pytest.mark.parametrize(
    "read",
    [
        lambda m: m.state_dict(),
        lambda m: list(m.parameters()),
        lambda m: list(m.buffers()),
        lambda m: m(torch.ones(2, 3)),
        lambda m: torch.equal(m.first.weight, m.first.weight),
        lambda m: m.first.weight.data,
        lambda m: repr(m.first.bias),
    ],
    ids=["state_dict", "parameters", "buffers", "call", "equal", "data", "repr"],
)
def test_what_reads_the_model_fetches(read, make, data, emulator):
    model = make()
    poptorch.trainingModel(model)(*data(4))
    read(model)
    assert emulator.counts["weights_to_host"] == 1


def test_host_changes_reach_the_device_only_when_sent(make, data):
    model = make()
    inference = poptorch.inferenceModel(model)
    x, _ = data(4)
    before = inference(x)
    with torch.no_grad():
        model.last.bias.add_(1.0)
    assert torch.equal(inference(x), before)
    inference.copyWeightsToDevice()
    torch.testing.assert_close(inference(x), before + 1.0)


def test_sending_weights_discards_what_was_trained(make, data):
    model = make()
    start = copy.deepcopy(model.state_dict())
    training = poptorch.trainingModel(model)
    training(*data(4))
    training.copyWeightsToDevice()
    assert torch.equal(model.state_dict()["last.weight"], start["last.weight"])


def test_forward_runs_once():
    class Counting(torch.nn.Module):
        scale = 1

        def __init__(self):
            super().__init__()
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            return x * self.scale + self.calls

    model = Counting()
    inference = poptorch.inferenceModel(model)
    inference.model.scale = 5
    for _ in range(3):
        assert torch.equal(inference(torch.ones(2)), torch.full((2,), 2.0))


def test_dropout_stays_as_it_was_wrapped(make, data):
    model = make(dropout=0.5).eval()
    inference = poptorch.inferenceModel(model)
    x, _ = data(4)
    first = inference(x)
    inference.train()
    assert torch.equal(inference(x), first)


class Counter(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x):
        self.seen += x.sum()
        return self.seen


def test_buffers_persist_on_the_device():
    model = Counter()
    inference = poptorch.inferenceModel(model)
    assert [inference(torch.ones(2)).item() for _ in range(3)] == [2, 4, 6]
    assert model.seen.item() == 0
    inference.copyWeightsToHost()
    assert model.seen.item() == 6


def test_replicas_must_give_up_agreement_on_changing_buffers():
    opts = poptorch.Options().replicationFactor(2)
    with pytest.raises(poptorch.Error, match="does not support broadcasting buffers"):
        poptorch.inferenceModel(Counter(), opts)(torch.ones(2))
    opts = opts.clone().broadcastBuffers(False)
    inference = poptorch.inferenceModel(Counter(), opts)
    inference(torch.tensor([1.0, 10.0]))
    assert inference(torch.tensor([1.0, 10.0])).tolist() == [2, 20]


def test_rebinding_a_buffer_is_refused_and_undone():
    class Rebinds(Counter):
        def forward(self, x):
            self.seen = self.seen + x
            return self.seen

    model = Rebinds()
    seen = model.seen
    with pytest.raises(poptorch.Error, match="Buffer seen is reassigned"):
        poptorch.inferenceModel(model)(torch.ones(1))
    assert model.seen is seen


def test_a_parameter_that_forward_adds_is_refused_and_gone():
    class Adds(Counter):
        def forward(self, x):
            self.scale = torch.nn.Parameter(torch.ones(len(x)))
            return self.scale * x

    model = Adds()
    with pytest.raises(poptorch.Error, match="Parameter scale is added"):
        poptorch.inferenceModel(model)(torch.ones(1))
    assert model.scale is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (torch.ones(4, 2), r"expected torch.Size\(\[4, 3\]\) but got"),
        (torch.ones(4, 3).half(), "expected torch.float32 but got torch.float16"),
        (None, "Type mismatch for x"),
    ],
    ids=["shape", "dtype", "none"],
)
def test_another_signature_is_refused_until_destroy(change, message, make, data):
    model = make()
    inference = poptorch.inferenceModel(model)
    inference(data(4)[0])
    with pytest.raises(poptorch.Error, match=message):
        inference(change)
    inference.destroy()
    assert inference(data(8)[0]).shape == (8, 1)


def test_constants_are_part_of_the_signature():
    class Scaled(torch.nn.Module):
        def forward(self, x, factor, more=None):
            return x * factor

    inference = poptorch.inferenceModel(Scaled())
    inference(torch.ones(1), 2)
    with pytest.raises(poptorch.Error, match="mismatch for factor: expected 2 but got"):
        inference(torch.ones(1), 3)
    with pytest.raises(AssertionError, match="Too many arguments"):
        inference(torch.ones(1), 2, None, 4)
    with pytest.raises(AssertionError, match="Invalid parameter: less"):
        inference(torch.ones(1), 2, less=1)
    with pytest.raises(poptorch.Error, match="Mandatory parameter factor missing"):
        inference(torch.ones(1))


def test_empty_tensors_are_refused(make):
    with pytest.raises(poptorch.Error, match="Zero-sized tensors are unsupported"):
        poptorch.inferenceModel(make())(torch.ones(0, 3))


def test_inputs_changed_in_place_are_written_back():
    class Grows(torch.nn.Module):
        def forward(self, x):
            x += 1
            return x * 2

    x = torch.zeros(4)
    poptorch.inferenceModel(Grows(), poptorch.Options().deviceIterations(2))(x)
    assert torch.equal(x, torch.ones(4))


def test_values_are_not_known_while_compiling():
    class Asks(torch.nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    class Masks(torch.nn.Module):
        def forward(self, x):
            return x[x > 0]

    with pytest.raises(poptorch.Error, match="aten::item"):
        poptorch.inferenceModel(Asks())(torch.ones(2))
    with pytest.raises(poptorch.Error, match="depends on values"):
        poptorch.inferenceModel(Masks())(torch.ones(2))


def test_complex_numbers_are_refused_by_the_operator_that_makes_them():
    class Transforms(torch.nn.Module):
        def forward(self, x):
            return torch.fft.irfft2(torch.fft.rfft2(x))

    with pytest.raises(poptorch.Error, match=r"\[fft_rfft2\]\. .* torch\.complex64"):
        poptorch.inferenceModel(Transforms())(torch.ones(2, 4, 4))


def test_host_tensors_do_not_mix_with_the_device():
    outside = torch.ones(2)

    class Mixes(torch.nn.Module):
        def forward(self, x):
            return x + outside

    with pytest.raises(poptorch.Error, match="Expected an IPU tensor but got tensor"):
        poptorch.inferenceModel(Mixes())(torch.ones(2))


def test_a_wrapped_model_cannot_be_wrapped_again(make, data):
    model = make()
    training = poptorch.trainingModel(model)
    assert type(model).__name__ == "PoptorchRegression"
    with pytest.raises(RuntimeError, match="already been wrapped"):
        poptorch.trainingModel(model)
    training(*data(4))
    model.destroy()
    assert type(model).__name__ == "Regression"
    assert type(model.first.weight) is torch.nn.Parameter
    poptorch.trainingModel(training)(*data(4))


def test_copies_stay_wrapped_and_saved_tensors_are_plain(make, data):
    model = make()
    poptorch.trainingModel(model)(*data(4))
    assert type(copy.deepcopy(model)) is type(model)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    assert {type(v) for v in loaded.values()} == {torch.Tensor}
    file = io.BytesIO()
    torch.save(model.first.weight, file)
    file.seek(0)
    assert type(torch.load(file, weights_only=True)) is torch.nn.Parameter


def test_attach_and_detach(make, data):
    model = make()
    training = poptorch.trainingModel(model)
    with pytest.raises(poptorch.Error, match="has not been compiled"):
        training.detachFromDevice()
    training(*data(4))
    with pytest.raises(poptorch.Error, match="already attached"):
        training.attachToDevice()
    training.detachFromDevice()
    with pytest.raises(poptorch.Error, match="not attached"):
        training.detachFromDevice()
    trained = copy.deepcopy(model.state_dict())
    training.attachToDevice()
    assert torch.equal(trained["last.weight"], model.state_dict()["last.weight"])
    training.detachFromDevice()
    training(*data(4))
    assert training.isAttachedToDevice()


def test_an_offline_device_compiles_and_does_not_run(make, data):
    opts = poptorch.Options().useOfflineIpuTarget()
    inference = poptorch.inferenceModel(make(), opts)
    inference.compile(data(4)[0])
    assert inference.isCompiled()
    with pytest.raises(AssertionError, match="offline device"):
        inference(data(4)[0])


def test_executables_go_through_files(tmp_path):
    x = torch.ones(3, 2)
    inference = poptorch.inferenceModel(torch.nn.Sequential(torch.nn.Linear(2, 2)))
    wanted = inference(x)
    inference.save(tmp_path / "deep" / "model.poptorch")
    one = poptorch.load(tmp_path / "deep")
    two = poptorch.load(tmp_path / "deep")
    assert torch.equal(one(x), wanted)
    with torch.no_grad():
        one.model[0].weight.zero_()
    one.copyWeightsToDevice()
    assert torch.equal(two(x), wanted)
    inference.save(tmp_path / "bare.poptorch", export_model=False)
    with pytest.raises(poptorch.Error, match="holds no model"):
        poptorch.load(tmp_path / "bare.poptorch")


def test_hooks_run_around_compilation(make, data):
    seen = []
    before = poptorch.registerPreCompileHook(lambda: seen.append("before"))
    after = poptorch.registerPostCompileHook(lambda: seen.append("after"))
    poptorch.inferenceModel(make())(data(4)[0])
    before.remove()
    poptorch.inferenceModel(make())(data(4)[0])
    after.remove()
    assert seen == ["before", "after", "after"]
    with pytest.raises(RuntimeError, match="callable"):
        poptorch.registerPreCompileHook(1)


def test_custom_types_are_parsed_both_ways():
    class Pair:
        def __init__(self, a, b):
            self.a, self.b = a, b

    class Parser(poptorch.ICustomArgParser):
        def yieldTensors(self, struct):
            yield struct.a
            yield struct.b

        def reconstruct(self, original_structure, tensor_iterator):
            return Pair(next(tensor_iterator), next(tensor_iterator))

    class Swaps(torch.nn.Module):
        def forward(self, pair):
            return Pair(pair.b + 1, pair.a)

    poptorch.registerCustomArgParser(Pair, Parser())
    out = poptorch.inferenceModel(Swaps())(Pair(torch.zeros(1), torch.ones(1)))
    poptorch.registerCustomArgParser(Pair, None)
    assert (out.a.item(), out.b.item()) == (2, 0)
    with pytest.raises(poptorch.Error, match="ICustomArgParser"):
        poptorch.registerCustomArgParser(Pair, object())


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_training_works_without_gradients_outside(context, make, data):
    model = make()
    before = copy.deepcopy(model.state_dict())
    training = poptorch.trainingModel(model)
    with context():
        training(*data(4))
    assert not torch.equal(before["last.weight"], model.state_dict()["last.weight"])


def test_wrong_types_are_refused(make):
    with pytest.raises(poptorch.Error, match="Invalid type"):
        poptorch.inferenceModel(make(), {"deviceIterations": 2})


def test_a_second_compile_is_ignored_with_a_warning(make, data, caplog):
    inference = poptorch.inferenceModel(make())
    inference.compile(data(4)[0])
    with caplog.at_level(logging.WARNING, "poptorch::python"):
        inference.compile(data(4)[0])
    assert "already compiled" in caplog.text


def test_operations_stand_for_cycles(make, data):
    options = poptorch.Options().logCycleCount(True).deviceIterations(2)
    inference = poptorch.inferenceModel(make(), options)
    with pytest.raises(poptorch.Error, match="at least once"):
        inference.cycleCount()
    inference(data(4)[0])
    once = poptorch.inferenceModel(make(), poptorch.Options().logCycleCount(True))
    once(data(4)[0])
    assert inference.cycleCount() == 2 * once.cycleCount() > 0
    with pytest.raises(poptorch.Error, match="disabled"):
        poptorch.inferenceModel(make()).cycleCount()


def test_ctc_decoding_finds_the_likeliest_labels():
    # "ab", "aab", "a-b" ... are one sequence, which is likelier than the best path.
    steps = torch.tensor([[0.4, 0.3, 0.3], [0.4, 0.6, 0.0], [0.2, 0.2, 0.6]])
    probs = torch.stack([steps, steps], dim=1).clamp(min=1e-9).log()

    class Decode(torch.nn.Module):
        def forward(self, probs, lengths):
            return poptorch.ctc_beam_search_decoder(probs, lengths, top_paths=2)

    scores, sizes, labels = poptorch.inferenceModel(Decode())(
        probs, torch.tensor([3, 2], dtype=torch.int32)
    )
    assert scores.shape == sizes.shape == (2, 2)
    assert labels[0, 0].tolist() == [1, 2, 0]
    # a-b, aab, aa-b.. : every alignment of "ab" over three steps
    every = 0.3 * 0.6 * 0.6 + 0.3 * 0.4 * 0.6 + 0.4 * 0.6 * 0.6
    assert scores[0, 0].exp().item() == pytest.approx(every, rel=1e-3)
    assert labels[1, 0].tolist() == [1, 0, 0]
    assert scores[0, 0] > scores[0, 1]


def test_constants_moved_to_the_device_are_part_of_the_graph():
    outside = torch.ones(2)

    class Moves(torch.nn.Module):
        def forward(self, x):
            return x + outside.to(x.device), str(x.device)

    out, device = poptorch.inferenceModel(Moves())(torch.ones(2))
    assert torch.equal(out, torch.full((2,), 2.0))
    assert device == "ipu:0"


def test_a_loaded_executable_keeps_its_mode(make, data, tmp_path):
    x, _ = data(4)
    first = poptorch.inferenceModel(make(dropout=0.5).eval())
    wanted = first(x)
    first.save(tmp_path / "eval.poptorch", export_model=False)
    second = poptorch.inferenceModel(make(dropout=0.5))
    second.loadExecutable(tmp_path / "eval.poptorch")
    assert torch.equal(second(x), wanted)
    assert second.model.training


def test_arguments_of_another_structure_are_refused():
    class Sums(torch.nn.Module):
        def forward(self, *args):
            return sum(
                t
                for arg in args
                for t in (arg.values() if isinstance(arg, dict) else arg)
            )

    one = torch.ones(1)
    inference = poptorch.inferenceModel(Sums())
    inference([one, one], {"a": one})
    for args, message in (
        (([one, one],), "Number of positional arguments mismatch"),
        (([one], {"a": one}), "Length mismatch"),
        (([one, one], {"b": one}), "Missing arguments: a. Unexpected arguments: b"),
        (((one, one), {"a": one}), "Type mismatch"),
    ):
        with pytest.raises(poptorch.Error, match=message):
            inference(*args)
    inference.destroy()
    assert inference([one], {"b": one}).item() == 2


def test_arguments_are_made_fit_with_one_warning(make, caplog):
    inference = poptorch.inferenceModel(make())
    turned = torch.ones(3, 4).t()
    inference(turned.requires_grad_())
    assert "requires_grad=True" in caplog.text
    inference(turned.detach())
    inference(torch.ones(3, 4).t())
    assert caplog.text.count("not contiguous") == 1
    with pytest.raises(AssertionError, match="passed more than once"):
        inference(turned, x=turned)


def test_dicts_are_accepted_with_a_warning(caplog):
    class Picks(torch.nn.Module):
        def forward(self, batch):
            return batch["a"] - batch["b"]

    inference = poptorch.inferenceModel(Picks())
    one, two = torch.ones(1), torch.full((1,), 2.0)
    assert inference({"a": two, "b": one}).item() == 1
    assert inference({"b": one, "a": two}).item() == 1  # the order does not matter
    assert caplog.text.count("partial support") == 1


def test_a_model_wrapped_from_another_follows_its_flags(make, data):
    x, y = data(4)
    model = make(dropout=0.5)
    training = poptorch.trainingModel(model)
    training(x, y)
    inference = poptorch.inferenceModel(training)
    inference.model.eval()
    assert torch.equal(inference(x), inference(x))


def test_the_compiled_module_stands_beside_its_optimizer_as_before_3_0(make):
    model = make()
    training = poptorch.trainingModel(model)
    assert training._model.model.first is model.first
    assert training._model.first is model.first
    assert training._model.optimizer is training._optimizer
    assert poptorch.inferenceModel(model)._model.first is model.first


def test_bounds_and_counts_are_constants():
    start = torch.tensor([1])

    class Cuts(torch.nn.Module):
        def forward(self, x, places):
            count = torch.bincount(places, minlength=4)
            return x[start : start + 2], count

    cut, count = poptorch.inferenceModel(Cuts())(
        torch.arange(4.0), torch.tensor([1, 1, 3, 0])
    )
    assert cut.tolist() == [1, 2]
    assert count.tolist() == [1, 2, 0, 1]

    class Counts(torch.nn.Module):
        def forward(self, places):
            return torch.bincount(places)

    with pytest.raises(poptorch.Error, match="minlength"):
        poptorch.inferenceModel(Counts())(torch.tensor([1]))


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (0, "must be different"),
        (-1, "end less than the start"),
        (3, "must be a factor"),
    ],
)
def test_dynamic_slices_have_a_size_that_fits(size, message):
    class Slices(torch.nn.Module):
        def forward(self, x, start):
            return poptorch.dynamic_slice(x, 0, start, size, 1)

    with pytest.raises(poptorch.Error, match=message):
        poptorch.inferenceModel(Slices())(torch.ones(8), torch.tensor([0]))


def test_printed_tensors_have_the_given_layout(capsys):
    class Prints(torch.nn.Module):
        def forward(self, x):
            return poptorch.ipu_print_tensor(x, "x", max_line_width=12, digits=3)

    poptorch.inferenceModel(Prints())(torch.tensor([[1.0, 2.5], [3.0, 4.0]]))
    assert capsys.readouterr().err == "x: (\n (1.00 2.50)\n (3.00 4.00)\n)\n"

    class Shortens(torch.nn.Module):
        def forward(self, x):
            return poptorch.ipu_print_tensor(
                x, summarise_threshold=4, edge_items=1, digits=1, separator=","
            )

    poptorch.inferenceModel(Shortens())(torch.arange(5.0))
    assert capsys.readouterr().err == "(0,...,4)\n"
