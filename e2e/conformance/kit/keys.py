"""Tokens of a made-up issuer: an EC key, its JWKS, and JSON Web Tokens signed with it."""

import json
import time

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, utils

from .wire import base64url

ISSUER, AUDIENCE, SCOPE = "https://issuer.example", "conformance", "agent"


class Issuer:
    def __init__(self):
        self.key = ec.generate_private_key(ec.SECP256R1())

    def jwks(self):
        numbers = self.key.public_key().public_numbers()
        x, y = (base64url(n.to_bytes(32, "big")) for n in (numbers.x, numbers.y))
        return {"keys": [{"kty": "EC", "crv": "P-256", "use": "sig", "alg": "ES256", "kid": "k1", "x": x, "y": y}]}

    def token(self, subject, scope=SCOPE):
        now = int(time.time())
        claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": subject, "iat": now, "exp": now + 3600, "scope": scope}
        header = {"alg": "ES256", "typ": "JWT", "kid": "k1"}
        signed = ".".join(base64url(json.dumps(part).encode()) for part in (header, claims))
        r, s = utils.decode_dss_signature(self.key.sign(signed.encode(), ec.ECDSA(hashes.SHA256())))
        return f"{signed}.{base64url(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"
