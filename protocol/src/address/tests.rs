use super::*;

/// Addresses and from where they can be reached; the forms that hide another address are in it.
const TABLE: &[(&str, Reach)] = &[
    ("8.8.8.8", Reach::Public),
    ("1.1.1.1", Reach::Public),
    ("9.255.255.255", Reach::Public),
    ("11.0.0.0", Reach::Public),
    ("172.15.255.255", Reach::Public),
    ("172.32.0.0", Reach::Public),
    ("192.167.255.255", Reach::Public),
    ("192.169.0.0", Reach::Public),
    ("100.63.255.255", Reach::Public),
    ("100.128.0.0", Reach::Public),
    ("169.253.255.255", Reach::Public),
    ("169.255.0.0", Reach::Public),
    ("192.0.1.1", Reach::Public),
    ("198.17.255.255", Reach::Public),
    ("198.20.0.0", Reach::Public),
    ("223.255.255.255", Reach::Public),
    ("126.255.255.255", Reach::Public),
    ("128.0.0.0", Reach::Public),
    ("10.0.0.0", Reach::Private),
    ("10.255.255.255", Reach::Private),
    ("172.16.0.0", Reach::Private),
    ("172.31.255.255", Reach::Private),
    ("192.168.0.1", Reach::Private),
    ("100.64.0.0", Reach::Private),
    ("100.127.255.255", Reach::Private),
    ("127.0.0.1", Reach::Loopback),
    ("127.255.255.254", Reach::Loopback),
    ("169.254.169.254", Reach::LinkLocal),
    ("169.254.0.0", Reach::LinkLocal),
    ("168.63.129.16", Reach::Platform),
    ("100.100.100.200", Reach::Platform),
    ("224.0.0.1", Reach::Multicast),
    ("239.255.255.255", Reach::Multicast),
    ("0.0.0.0", Reach::Reserved),
    ("0.1.2.3", Reach::Reserved),
    ("192.0.0.192", Reach::Reserved),
    ("192.0.2.1", Reach::Reserved),
    ("192.88.99.1", Reach::Reserved),
    ("198.18.0.1", Reach::Reserved),
    ("198.19.255.255", Reach::Reserved),
    ("198.51.100.7", Reach::Reserved),
    ("203.0.113.7", Reach::Reserved),
    ("240.0.0.1", Reach::Reserved),
    ("255.255.255.255", Reach::Reserved),
    ("2606:4700::1111", Reach::Public),
    ("2001:200::1", Reach::Public),
    ("2a00:1450:4001::200e", Reach::Public),
    ("2002:808:808::1", Reach::Public),
    ("64:ff9b::808:808", Reach::Public),
    ("::ffff:8.8.8.8", Reach::Public),
    ("::ffff:127.0.0.1", Reach::Loopback),
    ("::ffff:10.0.0.1", Reach::Private),
    ("::ffff:169.254.169.254", Reach::LinkLocal),
    ("::ffff:0:169.254.169.254", Reach::LinkLocal),
    ("64:ff9b::7f00:1", Reach::Loopback),
    ("64:ff9b::a9fe:a9fe", Reach::LinkLocal),
    ("64:ff9b:1::808:808", Reach::Reserved),
    ("2002:7f00:1::", Reach::Loopback),
    ("2002:a9fe:a9fe::1", Reach::LinkLocal),
    ("2002:c0a8:101::1", Reach::Private),
    ("::1", Reach::Loopback),
    ("::", Reach::Reserved),
    ("::127.0.0.1", Reach::Reserved),
    ("::2", Reach::Reserved),
    ("fd00::1", Reach::Private),
    ("fc00::1", Reach::Private),
    ("fd00:ec2::254", Reach::Platform),
    ("fe80::1", Reach::LinkLocal),
    ("febf::1", Reach::LinkLocal),
    ("fec0::1", Reach::Reserved),
    ("ff02::1", Reach::Multicast),
    ("2001::1", Reach::Reserved),
    ("2001:2::1", Reach::Reserved),
    ("2001:db8::1", Reach::Reserved),
    ("3fff::1", Reach::Reserved),
    ("3fff:1000::1", Reach::Public),
    ("4000::1", Reach::Reserved),
    ("100::1", Reach::Reserved),
    ("5f00::1", Reach::Reserved),
];

#[test]
fn from_where_an_address_is_reached() {
    for (address, want) in TABLE {
        assert_eq!(reach(address.parse().unwrap()), *want, "{address}");
    }
}

#[test]
fn urls_that_are_targets() {
    for (url, want) in [
        ("https://e.example", "https://e.example /"),
        ("https://E.Example.:443/a?b#c", "https://e.example /a?b"),
        ("http://e.example:443/", "http://e.example:443 /"),
        ("HTTPS://e.example?x=1", "https://e.example /?x=1"),
        ("https://10.1.2.3:8443/x", "https://10.1.2.3:8443 /x"),
        ("https://[::FFFF:7f00:1]/", "https://[::ffff:127.0.0.1] /"),
        ("http://seller.shops.svc:8080", "http://seller.shops.svc:8080 /"),
        ("https://xn--bcher-kva.example/", "https://xn--bcher-kva.example /"),
    ] {
        let target = Target::parse(url).unwrap();
        assert_eq!(format!("{} {}", target.origin(), target.path()), want, "{url}");
    }
}

#[test]
fn urls_that_are_none() {
    let long = format!("https://e.example/{}", "a".repeat(MAX_URL));
    for (url, want) in [
        ("", BadTarget::Scheme),
        ("e.example", BadTarget::Scheme),
        ("ftp://e.example", BadTarget::Scheme),
        ("file:///etc/passwd", BadTarget::Scheme),
        ("//e.example", BadTarget::Scheme),
        ("https:/e.example", BadTarget::Scheme),
        ("https://", BadTarget::Host),
        ("https:///x", BadTarget::Host),
        ("https://?x", BadTarget::Host),
        ("https://:443/", BadTarget::Host),
        ("https://user@e.example/", BadTarget::UserInfo),
        ("https://user:pass@e.example/", BadTarget::UserInfo),
        ("https://e.example@169.254.169.254/", BadTarget::UserInfo),
        ("https://e.example:0/", BadTarget::Port),
        ("https://e.example:65536/", BadTarget::Port),
        ("https://e.example:+80/", BadTarget::Port),
        ("https://e.example:80:80/", BadTarget::Port),
        ("https://e.example:x/", BadTarget::Port),
        ("https://[::1/", BadTarget::Host),
        ("https://[::1]x/", BadTarget::Host),
        ("https://[fe80::1%25eth0]/", BadTarget::Host),
        ("https://::1/", BadTarget::Host),
        ("https://2130706433/", BadTarget::Host),
        ("https://0x7f000001/", BadTarget::Host),
        ("https://0x7f.1/", BadTarget::Host),
        ("https://127.1/", BadTarget::Host),
        ("https://0177.0.0.1/", BadTarget::Host),
        ("https://127.0.0.1.nip.0x1/", BadTarget::Host),
        ("https://127.0.0.256/", BadTarget::Host),
        ("https://a..b/", BadTarget::Host),
        ("https://e.example../", BadTarget::Host),
        ("https://-a.example/", BadTarget::Host),
        ("https://e%2eexample/", BadTarget::Host),
        ("https://b\u{fc}cher.example/", BadTarget::Character),
        ("https://e.example/a b", BadTarget::Character),
        ("https://e.example/\r\nX: y", BadTarget::Character),
        ("https://e.example\\@169.254.169.254/", BadTarget::Character),
        ("https://e.example/\0", BadTarget::Character),
        (long.as_str(), BadTarget::TooLong),
    ] {
        assert_eq!(Target::parse(url), Err(want), "{url:?}");
    }
}

#[test]
fn what_may_be_reached() {
    let allow = Allow::parse(&[
        "seller.shops.svc",
        "*.Hooks.svc.:8080",
        "10.96.0.0/12",
        "10.1.2.3:80",
        "fd10::/16",
        "[fd20::1]:8080",
        "127.0.0.1:9000",
    ])
    .unwrap();
    let loopback = Err(Refusal::NotPublic(Reach::Loopback));
    let private = Err(Refusal::NotPublic(Reach::Private));
    let link = Err(Refusal::NotPublic(Reach::LinkLocal));
    for (url, address, want) in [
        // Everybody's.
        ("https://e.example/", "8.8.8.8", Ok(())),
        ("https://e.example:8443/", "2606:4700::1111", Ok(())),
        ("http://e.example/", "8.8.8.8", Err(Refusal::Plain)),
        // A public name that leads elsewhere.
        ("https://e.example/", "127.0.0.1", loopback),
        ("https://e.example/", "10.0.0.1", private),
        ("https://e.example/", "169.254.169.254", link),
        ("https://e.example/", "::ffff:169.254.169.254", link),
        ("http://e.example/", "169.254.169.254", link),
        ("https://e.example/", "fd00:ec2::254", Err(Refusal::NotPublic(Reach::Platform))),
        ("https://e.example/", "0.0.0.0", Err(Refusal::NotPublic(Reach::Reserved))),
        // A name that is allowed.
        ("http://seller.shops.svc/", "10.0.0.1", Ok(())),
        ("http://SELLER.shops.svc./", "10.0.0.1", Ok(())),
        ("https://seller.shops.svc:1234/", "8.8.8.8", Ok(())),
        ("http://seller.shops.svc/", "127.0.0.1", loopback),
        ("http://seller.shops.svc/", "169.254.169.254", link),
        ("http://xseller.shops.svc/", "10.0.0.1", private),
        ("http://a.seller.shops.svc/", "10.0.0.1", private),
        // A suffix and a port.
        ("http://a.hooks.svc:8080/", "172.16.0.1", Ok(())),
        ("http://a.b.hooks.svc:8080/", "172.16.0.1", Ok(())),
        ("http://hooks.svc:8080/", "172.16.0.1", private),
        ("http://xhooks.svc:8080/", "172.16.0.1", private),
        ("http://a.hooks.svc:8081/", "172.16.0.1", private),
        // Networks.
        ("http://anything.example/", "10.96.0.10", Ok(())),
        ("http://10.111.255.255:5000/", "10.111.255.255", Ok(())),
        ("http://anything.example/", "::ffff:10.96.0.10", Ok(())),
        ("http://anything.example/", "10.112.0.0", private),
        ("http://10.1.2.3/", "10.1.2.3", Ok(())),
        ("http://10.1.2.3:81/", "10.1.2.3", private),
        ("http://[fd10::7]:1/", "fd10::7", Ok(())),
        ("http://[fd20::1]:8080/", "fd20::1", Ok(())),
        ("http://[fd20::1]:8081/", "fd20::1", private),
        ("http://127.0.0.1:9000/", "127.0.0.1", Ok(())),
        ("http://127.0.0.1:19900/", "127.0.0.1", loopback),
    ] {
        assert_eq!(allow.check(&Target::parse(url).unwrap(), address.parse().unwrap()), want, "{url} at {address}");
    }
    let none = Allow::default();
    assert_eq!(none.check(&Target::parse("https://10.0.0.1/").unwrap(), "10.0.0.1".parse().unwrap()), private);
}

#[test]
fn rules_that_are_none() {
    for rule in [
        "",
        "*",
        "*.",
        "a b",
        "10.0.0.0/33",
        "10.0.0.0/x",
        "[::1",
        "[::1]x",
        "a:0",
        "a:x",
        "http://a",
        "*.*.svc",
        "0x7f.1",
        "[a]:80",
    ] {
        assert_eq!(Allow::parse(&[rule]), Err(BadRule { rule: rule.into() }));
    }
}

#[test]
fn networks() {
    let all: Network = Network::parse("0.0.0.0/0").unwrap();
    assert!(all.contains("255.1.2.3".parse().unwrap()) && !all.contains("fd00::1".parse().unwrap()));
    let odd = Network::parse("10.32.1.9/11").unwrap();
    assert!(odd.contains("10.63.255.255".parse().unwrap()) && !odd.contains("10.64.0.0".parse().unwrap()));
    assert_eq!(Network::parse("10.0.0"), Err(BadNetwork));
}
