"""Sets of labelled images: an npz with `images` [N,H,W,C] uint8 and `label`, or with JPEG files in one block (`jpeg`,
`offset`) and `label`. `class_split`, where there is one, says which classes are for testing."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from ..errors import BadData, MissingPart
from ..ir import Array

TESTED: Final = ("test", "evaluation")
HELP: Final = "numpy.savez('set.npz', images=images, label=label): images [N,H,W,C] uint8, one integer for each"


@dataclass(frozen=True)
class ImageSet:
    name: str
    labels: Array
    classes: Array  # those for testing
    groups: Array | None  # of each class: an episode stays within one (an alphabet)
    files: dict[str, Array]

    def images(self, rows: Array, size: int | None, channels: int = 3) -> Array:
        """[N,C,size,size] from -1 to 1; grey ones are repeated."""
        import torch
        from torch.nn import functional

        made = []
        for row in rows:
            pixels = self._pixels(int(row)).astype(np.float32)
            pixels = pixels if pixels.ndim == 3 else pixels[..., None]
            if pixels.shape[-1] == 1 and channels == 3:
                pixels = np.repeat(pixels, 3, axis=-1)
            image = torch.from_numpy(pixels.transpose(2, 0, 1).copy())[None]
            if size is not None and image.shape[2:] != (size, size):
                shrinks = min(image.shape[2:]) > size
                image = functional.interpolate(image, (size, size), mode="bilinear", antialias=shrinks)
            made.append(image[0].numpy())
        return np.stack(made) / np.float32(127.5) - np.float32(1)

    def _pixels(self, row: int) -> Array:
        if "images" in self.files:
            pixels: Array = self.files["images"][row]
            return pixels
        try:
            from PIL import Image
        except ModuleNotFoundError as error:
            raise MissingPart("JPEG images need Pillow", why=str(error), help="pip install pillow") from error
        offset = self.files["offset"]
        data = self.files["jpeg"][int(offset[row]) : int(offset[row + 1])].tobytes()
        return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def read_set(path: str) -> ImageSet:
    try:
        with np.load(path, allow_pickle=False) as found:
            files = {name: found[name] for name in found.files}
    except (OSError, ValueError) as error:
        raise BadData(f"cannot read the set '{path}'", why=str(error).partition("\n")[0], help=HELP) from error
    labels = files.get("label", np.zeros(0))
    count = len(files["images"]) if "images" in files else len(files.get("offset", ())) - 1
    whole = (
        files["images"].ndim in (3, 4) and files["images"].dtype == np.uint8 if "images" in files else "jpeg" in files
    )
    if (
        not whole
        or labels.ndim != 1
        or not np.issubdtype(labels.dtype, np.integer)
        or len(labels) != count
        or not count
    ):
        raise BadData(
            f"'{path}' is not a set of labelled images", why=f"it has {', '.join(files) or 'nothing'}", help=HELP
        )
    present = np.unique(labels)
    split = files.get("class_split")
    tested = present if split is None else np.array([c for c in present if str(split[c]) in TESTED], present.dtype)
    if not len(tested):
        tested = present
    groups = files.get("class_alphabet", files.get("class_group"))
    return ImageSet(Path(path).stem, labels, tested, groups, files)


__all__ = ["ImageSet", "read_set"]
