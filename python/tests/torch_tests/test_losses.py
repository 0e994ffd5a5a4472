"""What the package entmax's users expect: its losses, its modules, and τ and support of entmax."""

from __future__ import annotations

import dense
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; ./splash test installs it unless SPLASH_TORCH=0")
pytest.importorskip("splash_attention._core", reason="the extension is not built; ./splash test builds it")
import splash_attention as ours  # noqa: E402

ROWS, CLASSES = 12, 30


def scores(dtype=torch.float64, factor=1.0):
    x = (factor * torch.randn(ROWS, CLASSES, dtype=torch.float64)).to(dtype).requires_grad_()
    return x, torch.randint(0, CLASSES, (ROWS,))


@pytest.fixture
def package():
    return pytest.importorskip("entmax", reason="the entmax package is not installed; ./splash test installs it")


LOSSES = ["sparsemax_loss", "entmax15_loss", "entmax_bisect_loss"]
MODULES = ["SparsemaxLoss", "Entmax15Loss", "EntmaxBisectLoss"]


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("factor", [0.01, 1.0, 20.0])
def test_losses_are_the_packages(name, factor, package):
    x, target = scores(factor=factor)
    for arguments in ({},) if name != "entmax_bisect_loss" else ({"alpha": 1.2}, {"alpha": 1.8}):
        results = [getattr(library, name)(x, target, **arguments) for library in (ours, package)]
        torch.testing.assert_close(results[0], results[1], atol=1e-7, rtol=1e-7)
        weights = torch.rand(ROWS, dtype=torch.float64)
        mine, theirs = (torch.autograd.grad(loss, x, weights)[0] for loss in results)
        torch.testing.assert_close(mine, theirs, atol=1e-7, rtol=1e-7)


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("reduction", ["elementwise_mean", "sum", "none"])
def test_loss_modules_are_the_packages(name, reduction, package):
    x, target = scores()
    target[:4] = 0
    for ignore_index in (0, -100):
        results = [getattr(library, name)(reduction=reduction, ignore_index=ignore_index)(x, target) for library in (ours, package)]
        torch.testing.assert_close(results[0], results[1], atol=1e-7, rtol=1e-7)
        mine, theirs = (torch.autograd.grad(loss.sum(), x)[0] for loss in results)
        torch.testing.assert_close(mine, theirs, atol=1e-7, rtol=1e-7)
        assert ignore_index != 0 or (mine[:4] == 0).all()
    target[5] = -100  # the package indexes with it
    x2 = x.detach()[[i for i in range(ROWS) if i != 5]]
    shorter = getattr(ours, name)(reduction=reduction)(x2, target[target >= 0])
    torch.testing.assert_close(getattr(ours, name)(reduction=reduction)(x, target).sum(), shorter.sum())


@pytest.mark.parametrize("name", ["Sparsemax", "Entmax15", "EntmaxBisect"])
def test_modules_are_the_packages(name, package):
    x = torch.randn(3, 4, 7, dtype=torch.float64)
    for dim in (-1, 1):
        torch.testing.assert_close(getattr(ours, name)(dim=dim)(x), getattr(package, name)(dim=dim)(x), atol=1e-7, rtol=0)
    torch.testing.assert_close(ours.sparsemax(x, 1, 3), package.sparsemax(x, 1, 3))


def test_entmax_bisect_takes_alpha_as_the_package_does(package):
    x = torch.randn(2, 3, 4, 5, dtype=torch.float64)
    for shape in ((), (1,), (3, 1, 1), (2, 1, 1, 1), (2, 3, 4, 1)):
        alpha = (1.1 + torch.rand(shape, dtype=torch.float64)).requires_grad_()
        mine, theirs = (library.entmax_bisect(x, alpha, -1) for library in (ours, package))
        torch.testing.assert_close(mine, theirs, atol=1e-7, rtol=0)
        of_p = torch.randn_like(x)
        mine, theirs = (torch.autograd.grad(p, alpha, of_p)[0] for p in (mine, theirs))
        torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=1e-6)
    learned = ours.EntmaxBisect(torch.nn.Parameter(torch.tensor(1.4)))
    assert [name for name, _ in learned.named_parameters()] == ["alpha"]
    with pytest.raises(ValueError, match=r"alpha has shape \[4\]; it must broadcast to \[2, 3, 4, 1\]"):
        ours.entmax_bisect(x, torch.full((4,), 1.5))


def test_gradients_of_losses_are_the_differences_and_so_are_the_second():
    x, target = scores(factor=2.0)
    x, target = x[:3, :6].detach().requires_grad_(), target[:3] % 6
    for alpha in (torch.tensor(1.3, dtype=torch.float64), torch.tensor([1.2, 1.6, 2.0], dtype=torch.float64)):
        alpha.requires_grad_()
        assert torch.autograd.gradcheck(lambda x, a: ours.entmax_bisect_loss(x, target, a), (x, alpha))
    along, step = torch.randn_like(x), 1e-6
    (d_x,) = torch.autograd.grad(ours.entmax15_loss(x, target).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad((d_x * along).sum(), x)
    ahead, behind = (
        torch.func.grad(lambda x: ours.entmax15_loss(x, target).sum())(x.detach() + sign * step * along) for sign in (1, -1)
    )
    torch.testing.assert_close(second, (ahead - behind) / (2 * step), atol=1e-7, rtol=1e-6)


def test_near_softmax_the_loss_is_cross_entropy():
    x, target = scores(torch.float32)
    torch.testing.assert_close(
        ours.entmax_bisect_loss(x, target, 1.0001), torch.nn.functional.cross_entropy(x, target, reduction="none"), atol=3e-3, rtol=0
    )


@pytest.mark.parametrize("dtype, bound", [(torch.float32, 1e-5), (torch.bfloat16, 3e-2), (torch.float16, 3e-3)])
def test_losses_of_narrow_types_and_of_more_dimensions(dtype, bound):
    x, target = scores(dtype, 3.0)
    loss = ours.entmax15_loss(x.reshape(3, 4, CLASSES), target.reshape(3, 4))
    expected = ours.entmax15_loss(x.double(), target)
    assert loss.dtype == dtype and loss.shape == (3, 4)
    torch.testing.assert_close(loss.double().reshape(-1), expected, atol=bound, rtol=bound)
    with torch.autocast("cpu", torch.bfloat16):
        assert ours.entmax15_loss(x, target).dtype == torch.float32


def test_masked_classes_a_certain_target_and_no_rows():
    x = torch.tensor([[3.0, 0.0, -torch.inf], [0.0, 3.0, 0.0], [torch.nan, 0.0, 0.0]], requires_grad=True)
    loss = ours.sparsemax_loss(x, torch.tensor([0, 0, 0]))
    assert loss[0] == 0 and loss[1] == 3 and loss[2].isnan()
    (d_x,) = torch.autograd.grad(loss[:2].sum(), x)
    assert d_x[:2].tolist() == [[0, 0, 0], [-1, 1, 0]]
    empty = torch.zeros(0, 5, requires_grad=True)
    assert ours.entmax15_loss(empty, torch.zeros(0, dtype=torch.int64)).shape == (0,)


def test_an_annealed_loss_compiles_no_more_than_twice_and_vmaps():
    from torch._dynamo.testing import CompileCounterWithBackend

    x, target = scores(torch.float32)
    counter, module = CompileCounterWithBackend("aot_eager"), ours.EntmaxBisectLoss(2.0)
    compiled = torch.compile(module, fullgraph=True, backend=counter)
    for alpha in np.linspace(2.0, 1.1, 6).tolist():
        module.alpha = alpha
        expected = ours.entmax_bisect_loss(x, target, alpha).mean()
        result = compiled(x, target)
        torch.testing.assert_close(result, expected)
        torch.testing.assert_close(torch.autograd.grad(result, x), torch.autograd.grad(expected, x))
    assert counter.frame_count == 2
    stacked = torch.randn(3, ROWS, CLASSES)
    of_each = torch.func.vmap(torch.func.grad(lambda x: ours.entmax15_loss(x, target).sum()))(stacked)
    assert torch.equal(of_each[1], torch.func.grad(lambda x: ours.entmax15_loss(x, target).sum())(stacked[1]))


@pytest.mark.parametrize(
    ("call", "kind", "sentence"),
    [
        (lambda x, y: ours.entmax15_loss(x, y + CLASSES), ValueError, "X has 30 classes, so allowed are 0 to 29"),
        (lambda x, y: ours.entmax15_loss(x, y[1:]), ValueError, "X has shape [12, 30] and target [11]; X must be"),
        (lambda x, y: ours.entmax15_loss(x, y.float()), TypeError, "target is of float32; it must be of an integer dtype"),
        (lambda x, y: ours.entmax15_loss(x, [1]), TypeError, "target is a list; it must be a torch tensor"),
        (lambda x, y: ours.entmax15_loss(x.int(), y), TypeError, "X is of int32; allowed are"),
        (lambda x, y: ours.entmax_bisect_loss(x, y, torch.full((3,), 1.5)), ValueError, "alpha has 3 entries; allowed: 1, or 12"),
        (lambda x, y: ours.entmax_bisect_loss(x, y, 1), ValueError, "alpha is 1"),
        (lambda x, y: ours.SparsemaxLoss(reduction="max"), ValueError, "reduction is 'max'; allowed are"),
    ],
)
def test_bad_input_gets_one_sentence(call, kind, sentence):
    with pytest.raises(kind) as caught:
        call(*scores())
    assert sentence in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["torch", "numpy"])
@pytest.mark.parametrize("dim", [-1, 1])
def test_threshold_and_support_of_entmax(kind, dim):
    x = 3 * torch.randn(4, 5, 6, dtype=torch.float64)
    x[0, :, 1], x[1, 2, :] = -torch.inf, -torch.inf
    alpha = 1.2 + torch.rand(4, x.shape[1 if dim == -1 else 2], dtype=torch.float64)
    for given in (1.5, alpha):
        arguments = (x, given) if kind == "torch" else (x.numpy(), given if given is not alpha else alpha.numpy())
        p, (tau, support) = ours.entmax(*arguments, dim, return_aux=True)
        p, tau, support = (torch.as_tensor(part) for part in (p, tau, support))
        assert torch.equal(p, ours.entmax(x, given, dim)) and tau.shape == support.shape == p.sum(dim).shape
        assert torch.equal(support, (p > 0).sum(dim, dtype=torch.int32))
        less_one = (torch.as_tensor(given) - 1).expand(tau.shape).unsqueeze(dim)
        again = (less_one * x - tau.unsqueeze(dim)).clamp(min=0) ** (1 / less_one)
        torch.testing.assert_close(again, p)
        assert (tau.isinf() == (x == -torch.inf).all(dim)).all()
    expected = dense.entmax(x.movedim(dim, -1).numpy(), 1.5)
    np.testing.assert_allclose(ours.entmax(x, 1.5, dim, return_aux=True)[0].movedim(dim, -1), expected, atol=1e-9)
    half, aux = ours.entmax(x.half(), 1.5, dim, return_aux=True)
    assert half.dtype == torch.float16 and aux.tau.dtype == torch.float32
    for empty, rows in ((x[:0], (0, 6)), (x[..., :0], (4, 5))):
        for given in (empty, empty.numpy()):
            aux = ours.entmax(given, 1.5, 1 if rows[0] == 0 else -1, return_aux=True)[1]
            assert tuple(aux.tau.shape) == rows and aux.tau.dtype == given.dtype and not (aux.support > 0).any()
