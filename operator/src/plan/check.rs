//! Networks and hosts in a specification.

use std::net::IpAddr;

/// Checks a network in CIDR form; says what to write otherwise.
pub(super) fn network(text: &str) -> Result<(), String> {
    if is_network(text) {
        return Ok(());
    }
    Err(format!("\"{text}\" is no network: write it as 10.0.0.0/8 or fd00::/8"))
}

fn is_network(text: &str) -> bool {
    let Some((address, bits)) = text.split_once('/') else { return false };
    let Ok(address) = address.parse::<IpAddr>() else { return false };
    let most = if address.is_ipv4() { 32 } else { 128 };
    is_number(bits, most)
}

fn is_number(text: &str, most: u32) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) && text.parse().is_ok_and(|n: u32| n <= most)
}

/// Checks a receiver of push notifications: host, `*.suffix` or network, perhaps with a port.
pub(super) fn receiver(text: &str) -> Result<(), String> {
    if is_network(text) || is_host(text) {
        return Ok(());
    }
    let with_port = text.rsplit_once(':').is_some_and(|(rest, port)| {
        let bare = rest.strip_prefix('[').and_then(|r| r.strip_suffix(']'));
        let fits = match bare {
            Some(inner) => is_network(inner) || inner.parse::<IpAddr>().is_ok(),
            None => is_host(rest) || is_network(rest),
        };
        fits && is_number(port, 65535) && port != "0"
    });
    if with_port {
        return Ok(());
    }
    Err(format!(
        "\"{text}\" is no receiver: write a host, *.suffix or a network such as 10.0.0.0/8, perhaps with :port"
    ))
}

/// An address, a DNS name, or `*.` and one.
fn is_host(text: &str) -> bool {
    let name = text.strip_prefix("*.").unwrap_or(text);
    if text.parse::<IpAddr>().is_ok() {
        return true;
    }
    name.len() <= 253
        && name.split('.').all(|label| {
            let edge = |c: Option<u8>| c.is_some_and(|c| c.is_ascii_alphanumeric());
            label.len() <= 63
                && edge(label.bytes().next())
                && edge(label.bytes().last())
                && label.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-')
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks() {
        for good in ["10.0.0.0/8", "0.0.0.0/0", "fd00::/8", "::1/128"] {
            assert_eq!(network(good), Ok(()), "{good}");
        }
        for bad in ["10.0.0.0", "10.0.0.0/33", "10.0.0/8", "fd00::/129", "a/8", "10.0.0.0/", "10.0.0.0/+8", ""] {
            assert!(network(bad).unwrap_err().contains("10.0.0.0/8"), "{bad}");
        }
    }

    #[test]
    fn receivers() {
        for good in [
            "hooks.example.com",
            "hooks",
            "hooks.shop.svc.cluster.local:8080",
            "*.example.com",
            "*.example.com:8443",
            "10.0.0.0/8",
            "10.0.0.0/8:8080",
            "10.1.2.3",
            "10.1.2.3:80",
            "fd00::/8",
            "[fd00::/8]:443",
            "[fd00::1]:443",
        ] {
            assert_eq!(receiver(good), Ok(()), "{good}");
        }
        for bad in
            ["https://hooks.example.com", "a b", "*", "a.*.com", "host:", "host:0", "host:70000", "-a.com", "", "[a]:1"]
        {
            assert!(receiver(bad).is_err(), "{bad}");
        }
    }
}
