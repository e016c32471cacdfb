"""Which data sets there are, their official files and where these come from."""

from dataclasses import dataclass

from rookery.names import unknown


@dataclass(frozen=True)
class DataFile:
    """A file by its path below the data set's folder.

    ``checksums`` are written "algorithm:hexadecimal digits"; one of them must hold. ``unpacked`` is that of the file
    without its gzip wrapping, which is accepted in its place.
    """

    name: str
    bytes: int
    checksums: tuple[str, ...]
    unpacked: str | None = None

    @property
    def accepted(self) -> dict[str, tuple[str, ...]]:
        """The checksums by name of the file."""
        packed = {self.name: self.checksums}
        return packed | {self.name.removesuffix(".gz"): (self.unpacked,)} if self.unpacked else packed


@dataclass(frozen=True)
class Layout:
    """One way in which a data set lies in its folder: the files and folders that must be there, and that in words."""

    names: tuple[str, ...]
    told: str


@dataclass(frozen=True)
class Published:
    """A data set as it was published: what it is (``shape`` of an image, numbers of images), its official files.

    A file is downloaded from a mirror's address followed by its name; with an ``archive``, that is downloaded instead,
    and contains the files.
    """

    name: str
    summary: str
    shape: tuple[int, ...]
    classes: int
    train: int
    test: int
    licence: str
    files: tuple[DataFile, ...] = ()
    mirrors: tuple[str, ...] = ()
    archive: DataFile | None = None
    by_hand: bool = False
    """Whether nobody may hand it on, so that it is read where a user has put it, and never downloaded."""
    layouts: tuple[Layout, ...] = ()
    """Of one by hand: the ways in which it may lie in its folder."""

    @property
    def bytes(self) -> int:
        """The size of all files."""
        return sum(file.bytes for file in self.files)


def _idx(name: str, size: int, packed: str, unpacked: str) -> DataFile:
    return DataFile(name, size, (f"sha256:{packed}",), f"sha256:{unpacked}")


def _cifar(name: str, sha256: str) -> DataFile:
    return DataFile(f"cifar-10-batches-bin/{name}.bin", 10_000 * (1 + 3 * 32 * 32), (f"sha256:{sha256}",))


_IMAGENET = "ImageNet's terms of access: for research and education, and not to be handed on"

_PUBLISHED = (
    Published(
        "digits", "handwritten digits, part of scikit-learn", (8, 8), 10, 1438, 359,
        "BSD-3-Clause with scikit-learn; E. Alpaydin and C. Kaynak, UCI repository",
    ),
    Published(
        "mnist", "handwritten digits", (28, 28), 10, 60_000, 10_000,
        "none stated; Y. LeCun, C. Cortes and C. Burges",
        (
            _idx(
                "train-images-idx3-ubyte.gz", 9_912_422,
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
                "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            ),
            _idx(
                "train-labels-idx1-ubyte.gz", 28_881,
                "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
                "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            ),
            _idx(
                "t10k-images-idx3-ubyte.gz", 1_648_877,
                "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
                "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            ),
            _idx(
                "t10k-labels-idx1-ubyte.gz", 4_542,
                "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
                "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            ),
        ),
        ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
    ),
    Published(
        "fashion-mnist", "articles of clothing", (28, 28), 10, 60_000, 10_000,
        "MIT, copyright 2017 Zalando SE",
        (
            _idx(
                "train-images-idx3-ubyte.gz", 26_421_880,
                "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
                "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            ),
            _idx(
                "train-labels-idx1-ubyte.gz", 29_515,
                "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
                "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            ),
            _idx(
                "t10k-images-idx3-ubyte.gz", 4_422_102,
                "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
                "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            ),
            _idx(
                "t10k-labels-idx1-ubyte.gz", 5_148,
                "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
                "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
            ),
        ),
        (
            "https://fashion-mnist.s3.eu-central-1.amazonaws.com/",
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        ),
    ),
    Published(
        "cifar-10", "small colour photographs", (32, 32, 3), 10, 50_000, 10_000,
        "none stated; A. Krizhevsky, V. Nair and G. Hinton",
        (
            _cifar("data_batch_1", "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
            _cifar("data_batch_2", "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
            _cifar("data_batch_3", "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
            _cifar("data_batch_4", "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
            _cifar("data_batch_5", "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
            _cifar("test_batch", "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),
        ),
        ("https://www.cs.toronto.edu/~kriz/", "https://cave.cs.toronto.edu/kriz/"),
        DataFile(
            "cifar-10-binary.tar.gz", 170_052_171,
            ("sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",),
        ),
    ),
    Published(
        "omniglot", "handwritten characters of 50 alphabets, 20 drawings of each", (28, 28), 1623, 19_280, 13_180,
        "MIT, copyright 2015 Brenden Lake",
        (  # MD5: as the authors pack them; SHA-256: the same images, sorted and without dates
            DataFile(
                "images_background.zip", 8_545_058,
                (
                    "md5:68d2efa1b9178cc56df9314c21c6e718",
                    "sha256:8720b329b69c2c60badef73b7b2873c6d73f466bfdb631c642cdb109e90b0fbd",
                ),
            ),
            DataFile(
                "images_evaluation.zip", 5_833_360,
                (
                    "md5:6b91aef0f799c5bb55b94e3f2daec811",
                    "sha256:a84d4d2379d450bdb09fb32460da9e4d6ef8000ef2d08cf228bd3a7242338bd6",
                ),
            ),
        ),
        (
            "https://raw.githubusercontent.com/brendenlake/omniglot/master/python/",
            "https://github.com/brendenlake/omniglot/raw/master/python/",
        ),
    ),
    Published(
        "mini-imagenet", "photographs of 100 kinds of things, 600 of each; to be provided by you", (84, 84, 3), 100,
        38_400, 21_600, _IMAGENET, by_hand=True,
        layouts=(
            Layout(("train", "val", "test"), "the folders train, val and test of CLASS/*.jpg"),
            Layout(
                ("images", "train.csv", "val.csv", "test.csv"),
                "images/*.jpg with train.csv, val.csv and test.csv (filename,label)",
            ),
        ),
    ),
    Published(
        "tiny-imagenet", "small photographs of 200 kinds of things; to be provided by you", (64, 64, 3), 200,
        100_000, 10_000, _IMAGENET, by_hand=True,
        layouts=(
            Layout(("tiny-imagenet-200",), "the official folder tiny-imagenet-200"),
            Layout(("tiny-imagenet-200.zip",), "tiny-imagenet-200.zip as it is"),
        ),
    ),
)  # fmt: skip

DATASETS: dict[str, Published] = {each.name: each for each in _PUBLISHED}
"""By name; the training part of Omniglot is its background set, the test part its evaluation set.

The test part of MiniImageNet has its validation and its test classes, that of Tiny-ImageNet is its validation part: the
labels of its test part are not public.
"""


def published(name: str) -> Published:
    """The data set of this name; a wrong one is answered with the names and the nearest of them."""
    if name in DATASETS:
        return DATASETS[name]
    raise ValueError(f"dataset: {unknown(name, DATASETS)}")
