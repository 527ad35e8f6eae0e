"""The blob store as the settings ask for it. Making one connects to nothing."""

from __future__ import annotations

from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.tier.blobs import BlobStore
from isotherm.storage.blobs.folder import FolderBlobs
from isotherm.storage.blobs.s3 import S3Blobs
from isotherm.storage.s3 import Bucket, Objects
from isotherm.storage.settings import Settings

_FOLDER = "blobs"


def blob_store(settings: Settings) -> BlobStore:
    """Where large bodies of cold records are kept.

    Raises: RejectedError naming the settings that are missing.
    """
    if settings.blob_store == "folder":
        return FolderBlobs(settings.blob_dir or settings.data_dir / _FOLDER)
    if not settings.s3_bucket:
        raise RejectedError("settings: ISOTHERM_BLOB_STORE=s3 needs ISOTHERM_S3_BUCKET")
    bucket = Bucket(
        settings.s3_bucket,
        prefix=settings.s3_prefix,
        endpoint=settings.s3_endpoint,
        region=settings.s3_region,
        access_key=settings.s3_access_key,
        secret_key=settings.s3_secret_key,
    )
    return S3Blobs(Objects(bucket))
