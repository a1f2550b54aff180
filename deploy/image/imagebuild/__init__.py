"""Builds the image as an OCI archive, and what a release is made of.

entries    what goes into a layer: files, folders and links, and the tar made of them
lock       which packages and wheels, by version and checksum
debian     Debian's packages: resolved, fetched, unpacked
wheels     Python's: resolved, fetched, unpacked; and our own
inputs     the packages and wheels of one build: locked, or today's
bytecode   the compiled modules beside their sources
contents   what is dropped, what is added
licences   under which licence each component is, and that its text is in the image
sbom       the components as an SPDX document
oci        the archive: layers, configuration, manifest, index
image      all of these in their order
main       the command deploy/image/build.py
index      the archives of several architectures as one, and the command deploy/image/join.py
readiness  whether a tree is ready to be released
release    the command deploy/image/release.py
errors     what both say when they cannot go on
"""
