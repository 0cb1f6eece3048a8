"""The signed card: the verifier of the official Python SDK takes it, while keys come and go, and takes no other."""

import json
import pathlib
import tempfile
import time

from a2a.types import AgentCard
from a2a.utils.signing import SignatureVerificationError, create_signature_verifier
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from google.protobuf.json_format import ParseDict
from jwt import PyJWK

from . import wire
from .pod import Pod, live

KEYS = {
    "1-ec": lambda: ec.generate_private_key(ec.SECP256R1()),
    "2-ed": ed25519.Ed25519PrivateKey.generate,
    "3-rsa": lambda: rsa.generate_private_key(65537, 2048),
}
ALGORITHMS = ["ES256", "EdDSA", "RS256"]
PATIENCE = 15


def write(folder, name):
    pem = KEYS[name]().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    new = folder.parent / f"{name}.new"
    new.write_bytes(pem)
    new.rename(folder / name)


def get(path, **headers):
    status, _, body = wire.http_call("GET", path, headers=headers)
    assert status == 200, f"{path} answers {status}"
    return json.loads(body)


def published():
    return {key["kid"]: PyJWK(key) for key in get("/.well-known/jwks.json")["keys"]}


def until(kids):
    """Waits until the keys are in force."""
    deadline = time.monotonic() + PATIENCE
    while sorted(published()) != sorted(kids):
        assert time.monotonic() < deadline, f"the keys are {sorted(published())}, want {kids}"
        time.sleep(0.1)


def taken(card, keys):
    """Whether the SDK takes a card for signed by one of these keys."""
    try:
        verify = create_signature_verifier(lambda kid, jku: keys.get(kid, keys["else"]), ALGORITHMS)
        verify(ParseDict(card, AgentCard()))
        return True
    except SignatureVerificationError:
        return False


def checks(folder):
    other = PyJWK({"kty": "oct", "k": "AAAA", "alg": "HS256"})
    old = {}
    for kids in (["1-ec"], ["1-ec", "2-ed"], ["2-ed", "3-rsa"], ["3-rsa"]):
        for name in kids:
            if not (folder / name).exists():
                write(folder, name)
        for file in folder.iterdir():
            if file.name not in kids:
                file.unlink()
        until(kids)
        keys, card = published(), get("/.well-known/agent-card.json", **{"A2A-Version": "1.0"})
        for kid in kids:
            yield f"signed by {kid} of {kids}", taken(card, {kid: keys[kid], "else": other})
        for kid in set(old) - set(kids):
            yield f"no more signed by {kid}", not taken(card, {kid: old[kid], "else": other})
        changed = {**card, "description": card["description"] + "!"}
        yield f"another card under the signatures of {kids}", not taken(changed, {**keys, "else": other})
        both = get("/.well-known/agent-card.json")
        yield "the card for readers of both versions is not signed", "signatures" not in both and both["url"]
        old = {**old, **keys}


def main(only=None):
    failed, count = [], 0
    with tempfile.TemporaryDirectory(prefix="card-") as root:
        root = pathlib.Path(root)
        folder, callers = root / "signing", root / "callers"
        folder.mkdir(), callers.mkdir()
        (callers / "alice").write_text("correct-horse-battery-staple")
        write(folder, "1-ec")
        # A requirement without scopes is what verifiers read in different ways; so are characters beyond ASCII.
        document = live(
            card={"description": "Grüße, 漢字 😀", "skills": [{"id": "a", "name": "A", "description": "d", "tags": ["t"]}]},
            offer={"signingKeys": str(folder)},
            access={"apiKey": {"header": "X-API-Key", "folder": str(callers)}},
        )
        with Pod(document, "card"):
            for name, holds in checks(folder):
                count += 1
                if not holds:
                    failed.append(name)
    print("\n".join(f"--- {name}" for name in failed))
    print(f"{count - len(failed)} passed, {len(failed)} failed")
    return len(failed)
