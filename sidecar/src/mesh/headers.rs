//! Headers that end at a proxy (RFC 9110, section 7.6.1).

use http::header::{
    CONNECTION, EXPECT, HOST, HeaderName, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING,
    UPGRADE,
};
use http::{HeaderMap, HeaderValue, Version};

use crate::a2a::ids::Trace;

const HOP_BY_HOP: [HeaderName; 10] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("http2-settings"),
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// Takes out what concerns one connection alone, the headers that `Connection` names too.
pub fn end_to_end(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|v| v.to_str().ok())
        .flat_map(|v| v.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
}

/// The headers of a request as the peer gets them: its own host, and the caller's trace with a span of ours.
pub fn forward(headers: &mut HeaderMap, authority: &HeaderValue, version: Version) {
    let trailers = headers.get_all(TE).iter().any(|v| v.to_str().is_ok_and(|v| v.contains("trailers")));
    end_to_end(headers);
    // The server in front of us has seen to it.
    headers.remove(EXPECT);
    if version == Version::HTTP_2 {
        headers.remove(HOST);
        if trailers {
            // gRPC wants to hear that trailers reach the caller.
            headers.insert(TE, HeaderValue::from_static("trailers"));
        }
    } else {
        headers.insert(HOST, authority.clone());
    }
    let trace = Trace::of(headers);
    headers.insert("traceparent", trace.parent);
    match trace.state {
        Some(state) => headers.insert("tracestate", state),
        None => headers.remove("tracestate"),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_concerns_one_connection_goes() {
        let mut headers = HeaderMap::new();
        for (key, value) in [
            ("connection", "close, X-Secret-Hop"),
            ("x-secret-hop", "1"),
            ("keep-alive", "timeout=5"),
            ("te", "trailers"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "h2c"),
            ("host", "127.0.0.1:19900"),
            ("expect", "100-continue"),
            ("authorization", "Bearer of-the-agent"),
            ("a2a-version", "1.0"),
            ("tracestate", "left=over"),
        ] {
            headers.insert(key, value.parse().unwrap());
        }
        let authority = HeaderValue::from_static("seller:8080");
        let mut first = headers.clone();
        forward(&mut first, &authority, Version::HTTP_11);
        let mut names: Vec<_> = first.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["a2a-version", "authorization", "host", "traceparent"]);
        assert_eq!(first["host"], "seller:8080");
        forward(&mut headers, &authority, Version::HTTP_2);
        assert_eq!((headers.get("host"), &headers["te"]), (None, &HeaderValue::from_static("trailers")));
    }
}
