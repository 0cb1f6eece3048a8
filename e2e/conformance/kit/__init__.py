"""Conformance of the sidecar's A2A face, as clients see it: no cluster, a scripted agent behind the real binary."""
