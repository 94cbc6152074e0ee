import hashlib
import io
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from sklearn.datasets import load_breast_cancer
from torch.utils.data import TensorDataset

from hansa.choose import choose
from hansa.errors import UserError
from hansa.task import Source
from simulations.datasets.base import Arrays, FederatedDataset, TrainTest, divide, stratified
from simulations.datasets.breast_cancer import BreastCancer
from simulations.datasets.digits import Digits
from simulations.datasets.download import fetch, over_https
from simulations.datasets.synthetic import Synthetic
from simulations.partition import Dirichlet, Iid, Natural


def tensors(source: Source, split: Any) -> tuple[torch.Tensor, ...]:
    dataset = source.split(split)
    assert isinstance(dataset, TensorDataset)
    return dataset.tensors


def both(source: Source) -> tuple[torch.Tensor, ...]:
    """Training rows, then test rows."""
    return tuple(torch.cat(parts) for parts in zip(tensors(source, "train"), tensors(source, "test"), strict=True))


def rows(source: Source) -> int:
    return len(source.split("train")) + len(source.split("test"))


ALL: list[FederatedDataset] = [BreastCancer(), Digits(), Synthetic(alpha=1, beta=1, sites=4)]


@pytest.mark.parametrize("dataset", ALL, ids=lambda d: type(d).__name__)
def test_x_is_float32_and_y_int64(dataset: FederatedDataset) -> None:
    for source in (dataset.pooled(), *map(dataset.source, dataset.sites())):
        for split in ("train", "test"):
            x, y = tensors(source, split)
            assert (x.dtype, y.dtype, y.shape) == (torch.float32, torch.int64, x.shape[:1])
            assert torch.isfinite(x).all()


@pytest.mark.parametrize("dataset", ALL, ids=lambda d: type(d).__name__)
def test_pooled_rows_are_the_sites_rows(dataset: FederatedDataset) -> None:
    if dataset.sites():
        assert rows(dataset.pooled()) == sum(rows(dataset.source(site)) for site in dataset.sites())
        for split in ("train", "test"):
            labels = [tensors(dataset.source(site), split)[1] for site in dataset.sites()]
            assert torch.equal(tensors(dataset.pooled(), split)[1], torch.cat(labels))


@pytest.mark.parametrize("dataset", ALL, ids=lambda d: type(d).__name__)
def test_options_survive_a_round_trip_and_unknown_ones_are_refused(dataset: FederatedDataset) -> None:
    assert type(dataset).model_validate(dataset.model_dump()) == dataset
    with pytest.raises(ValidationError, match="colour"):
        type(dataset).model_validate({"colour": "blue"})
    with pytest.raises(UserError, match="has no site 'nowhere'"):
        dataset.source("nowhere")


def test_breast_cancer_has_569_tumours_212_of_them_malignant() -> None:
    """Counts of the UCI description."""
    x, y = both(BreastCancer().pooled())
    assert x.shape == (569, 30)
    assert y.sum() == 212


def test_breast_cancer_rows_are_scikit_learns() -> None:
    x, benign = load_breast_cancer(return_X_y=True)
    source = BreastCancer(normalize=False).pooled()
    ours = torch.column_stack(both(source))
    theirs = torch.from_numpy(np.column_stack([x, 1 - benign])).float()
    assert sorted(ours.tolist()) == sorted(theirs.tolist())


def test_the_made_up_hospitals_are_uneven_in_size_and_in_labels() -> None:
    sources = [BreastCancer().source(site) for site in BreastCancer().sites()]
    assert [rows(source) for source in sources] == [256, 171, 85, 57]
    malignant = [sum(int(tensors(source, split)[1].sum()) for split in ("train", "test")) for source in sources]
    assert malignant == [72, 68, 42, 30]
    assert [len(source.split("test")) for source in sources] == [64, 43, 22, 15]  # a quarter, rounded up


def test_each_site_is_normalised_by_its_own_training_rows() -> None:
    dataset = BreastCancer()
    for source in (dataset.pooled(), *map(dataset.source, dataset.sites())):
        x = tensors(source, "train")[0].double()
        assert x.mean(0).abs().max() < 1e-5
        assert (x.std(0) - 1).abs().max() < 1e-5
    raw, own = (tensors(BreastCancer(normalize=n).source("west"), "test")[0] for n in (False, True))
    train = tensors(BreastCancer(normalize=False).source("west"), "train")[0]
    torch.testing.assert_close(own, (raw - train.mean(0)) / train.std(0))


def test_a_constant_column_is_zero_after_normalisation() -> None:
    x, y = torch.full((4, 1), 3.0), torch.zeros(4, dtype=torch.int64)
    assert torch.equal(Arrays(x, y, x, y).zscored().x_test, torch.zeros(4, 1))


def test_digits_are_1797_images_from_0_to_1() -> None:
    source = Digits().pooled()
    (x_train, y_train), (x_test, y_test) = tensors(source, "train"), tensors(source, "test")
    assert (len(x_train), len(x_test)) == (1437, 360)
    assert x_train.shape[1:] == (1, 8, 8)
    assert (float(x_train.min()), float(x_train.max())) == (0, 1)
    share = torch.bincount(y_test) / torch.bincount(torch.cat([y_train, y_test]))
    assert ((share - 0.2).abs() < 0.01).all()  # stratified: each of 174 or more rows a digit, within one row


def test_a_label_with_few_rows_does_not_stop_the_split() -> None:
    """As in FLamby: with one label, or a label of fewer than three rows, the split is plain."""
    x = torch.zeros(10, 1)
    for y in (torch.ones(10, dtype=torch.int64), torch.tensor([0] * 9 + [1])):
        arrays = stratified(x, y, test=0.34, seed=43)
        assert (len(arrays.y_train), len(arrays.y_test)) == (6, 4)


# synthetic


def test_synthetic_has_30_sites_of_50_rows_or_more_split_90_to_10() -> None:
    arrays = Synthetic(alpha=1, beta=1).arrays()
    assert len(arrays) == 30
    for a in arrays.values():
        n = len(a.y_train) + len(a.y_test)
        assert n >= 50
        assert len(a.y_train) == int(0.9 * n)
        assert a.x_train.shape[1] == 60


@pytest.mark.parametrize("dataset", [Synthetic(alpha=1, beta=1, sites=6), Synthetic(iid=True, sites=6)])
def test_labels_follow_the_sites_linear_law(dataset: Synthetic) -> None:
    """y = argmax(W'x + b), up to rounding of x to float32."""
    for number, a in enumerate(dataset.arrays().values()):
        W, b = dataset.law(number)
        law = (a.x_train.double().numpy() @ W + b).argmax(1)
        assert (law == a.y_train.numpy()).mean() > 0.999


def test_iid_sites_share_one_law_and_others_do_not() -> None:
    iid, other = Synthetic(iid=True), Synthetic(alpha=1, beta=1)
    assert all(np.array_equal(iid.law(0)[0], iid.law(site)[0]) for site in range(30))
    assert not np.array_equal(other.law(0)[0], other.law(1)[0])


def test_alpha_is_the_standard_deviation_between_the_sites_laws() -> None:
    """The mean of a site's W ~ N(0, alpha^2 + 1/600); its sample variance over m sites has sd var*sqrt(2/(m-1))."""
    means = [Synthetic(alpha=2).law(site)[0].mean() for site in range(300)]
    variance = 4 + 1 / 600
    assert abs(np.var(means, ddof=1) - variance) < 5 * variance * np.sqrt(2 / 299)


def test_the_variance_of_feature_j_is_j_to_the_minus_1_2() -> None:
    """IID sites have v = 0, so all their rows are one sample of N(0, diag(j^-1.2)): 6 sd of a normal variance."""
    x = tensors(Synthetic(iid=True).pooled(), "train")[0].double()
    expected = torch.arange(1, 61, dtype=torch.float64) ** -1.2
    assert ((x.square().mean(0) / expected - 1).abs() < 6 * np.sqrt(2 / len(x))).all()


def test_beta_is_the_standard_deviation_between_the_sites_centres() -> None:
    """The mean of a site's 60 coordinates of v ~ N(0, beta^2 + 1/60), n >= 50 rows add less than .002."""
    means = [float(Synthetic(beta=3).rows(site).x_train.mean()) for site in range(200)]
    variance = 9 + 1 / 60
    assert abs(np.var(means, ddof=1) - variance) < 5 * variance * np.sqrt(2 / 199) + 0.002


def test_a_sites_rows_do_not_depend_on_the_number_of_sites() -> None:
    few, many = (Synthetic(alpha=1, beta=1, sites=n).arrays()["site-02"] for n in (2, 5))
    assert torch.equal(few.x_train, many.x_train)


def test_a_copy_with_another_seed_is_another_data_set() -> None:
    dataset = Synthetic(sites=2)
    digest = dataset.sha256
    assert dataset.model_copy(update={"seed": 1}).sha256 != digest
    assert Synthetic(sites=2).sha256 == digest


@pytest.mark.parametrize("wrong", [{"iid": True, "alpha": 1}, {"sites": 0}, {"alpha": -1}, {"normalize": True}])
def test_options_without_effect_or_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Synthetic.model_validate(wrong)


# divide


def test_without_a_partition_the_data_keep_their_own_sites() -> None:
    assert tuple(divide(BreastCancer(), None, 0)) == BreastCancer().sites()
    with pytest.raises(UserError, match=r"Digits has no sites of its own; write \[simulation.partition\]"):
        divide(Digits(), None, 0)


def test_divided_rows_are_all_the_pooled_rows() -> None:
    sites = divide(Digits(), Dirichlet(alpha=0.5, sites=5), 0)
    assert list(sites) == ["site-01", "site-02", "site-03", "site-04", "site-05"]
    for split, n in (("train", 1437), ("test", 360)):
        x = torch.cat([tensors(source, split)[0] for source in sites.values()])
        pooled = tensors(Digits().pooled(), split)[0]
        assert sorted(x.reshape(n, -1).tolist()) == sorted(pooled.reshape(n, -1).tolist())


def test_test_rows_of_a_site_have_its_training_labels_only() -> None:
    """A label's test rows are m = 35 to 37, cut within one row of the training share: label by label."""
    for source in divide(Digits(), Dirichlet(alpha=0.3, sites=6), 1).values():
        train, test = (torch.bincount(tensors(source, split)[1], minlength=10) for split in ("train", "test"))
        assert ((test - train / 4).abs() <= 1.5).all()


def test_by_the_column_site_the_natural_partition_is_the_sites_themselves() -> None:
    dataset = BreastCancer(normalize=False)
    dealt = divide(dataset, Natural(column="site"), 0)
    assert sorted(dealt) == sorted(dataset.sites())
    for site, source in dealt.items():
        for split in ("train", "test"):
            assert torch.equal(tensors(source, split)[0], tensors(dataset.source(site), split)[0])


def test_an_unknown_column_is_told() -> None:
    with pytest.raises(UserError, match='Digits has no column "bank" to divide by'):
        divide(Digits(), Natural(column="bank"), 0)


class OddRows:
    """A data set of rows, not of tensors."""

    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int, /) -> Any:
        return {"x": index}


class Odd(FederatedDataset):
    def pooled(self) -> Source:
        return TrainTest(OddRows(), [])

    @property
    def sha256(self) -> str:
        return ""


def test_rows_of_any_kind_are_divided() -> None:
    sites = divide(Odd(), Iid(sites=3), 0)
    found = [source.split("train")[row]["x"] for source in sites.values() for row in range(3)]
    assert sorted(found) == list(range(9))
    assert all(len(source.split("test")) == 0 for source in sites.values())


def test_without_test_rows_every_site_has_none() -> None:
    class Untested(Odd):
        def pooled(self) -> Source:
            return TrainTest(Digits().pooled().split("train"), [])

    for source in divide(Untested(), Dirichlet(alpha=1, sites=3), 0).values():
        assert len(source.split("train")) >= 10
        assert len(source.split("test")) == 0


def test_a_built_in_s_file_name_is_its_name() -> None:
    for name, kind in {"breast_cancer": BreastCancer, "digits": Digits, "synthetic": Synthetic}.items():
        assert choose("datasets", name, FederatedDataset) is kind  # type: ignore[type-abstract]


# fetch

PUBLISHED = b"63,1,4,?\n"
SHA256 = hashlib.sha256(PUBLISHED).hexdigest()
URL = "https://data.example/heart/a.data"


class Web:
    """A source of one file, and how often it was asked."""

    def __init__(self, content: bytes | OSError = PUBLISHED) -> None:
        self.content, self.asked = content, 0

    def __call__(self, url: str) -> AbstractContextManager[IO[bytes]]:
        self.asked += 1
        if isinstance(self.content, OSError):
            raise self.content
        return io.BytesIO(self.content)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("HANSA_DATA_DIR", raising=False)
    monkeypatch.setenv("HANSA_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_file_is_downloaded_once(cache: Path) -> None:
    web = Web()
    for _ in range(2):
        path = fetch("heart/a.data", URL, SHA256, opener=web)
    assert path == cache / "heart" / "a.data"
    assert path.read_bytes() == PUBLISHED
    assert web.asked == 1
    assert list(path.parent.iterdir()) == [path]


def test_a_download_with_another_digest_is_refused_and_not_kept(cache: Path) -> None:
    with pytest.raises(UserError) as caught:
        fetch("heart/a.data", URL, SHA256, opener=Web(b"<html>moved</html>"))
    message = str(caught.value)
    assert SHA256 in message
    assert hashlib.sha256(b"<html>moved</html>").hexdigest() in message
    assert str(cache / "heart" / "a.data") in message
    assert not list((cache / "heart").iterdir())


@pytest.mark.parametrize("kept", ["heart/a.data", "a.data"])
def test_the_users_folder_comes_first(kept: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    web = Web()
    fetch("heart/a.data", URL, SHA256, opener=web)
    mine = tmp_path / "mine" / kept
    mine.parent.mkdir(parents=True)
    mine.write_bytes(PUBLISHED)
    monkeypatch.setenv("HANSA_DATA_DIR", str(tmp_path / "mine"))
    assert fetch("heart/a.data", URL, SHA256, opener=web) == mine
    assert web.asked == 1


def test_a_changed_file_in_the_users_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.data").write_bytes(b"edited")
    monkeypatch.setenv("HANSA_DATA_DIR", str(tmp_path))
    web = Web()
    with pytest.raises(UserError, match=f"a.data: sha256 is .* published is {SHA256}"):
        fetch("heart/a.data", URL, SHA256, opener=web)
    assert web.asked == 0


def test_a_damaged_cache_is_refused(cache: Path) -> None:
    fetch("heart/a.data", URL, SHA256, opener=Web()).write_bytes(b"damaged")
    with pytest.raises(UserError, match="remove it"):
        fetch("heart/a.data", URL, SHA256, opener=Web())


def test_without_a_network_the_error_says_what_to_put_where(cache: Path) -> None:
    with pytest.raises(UserError) as caught:
        fetch("heart/a.data", URL, SHA256, opener=Web(OSError("no route to host")))
    for part in (URL, "no route to host", str(cache / "heart" / "a.data"), "HANSA_DATA_DIR"):
        assert part in str(caught.value)
    assert not list((cache / "heart").iterdir())


@pytest.mark.parametrize("url", ["http://data.example/a", "file:///etc/hostname", "ftp://data.example/a"])
def test_only_https_is_opened(url: str) -> None:
    with pytest.raises(UserError, match="over https only"):
        over_https(url)
