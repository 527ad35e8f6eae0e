"""Blob stores: adapters of `isotherm.pipeline.tier.blobs.BlobStore`."""
