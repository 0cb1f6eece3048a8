//! Networks, and what kind of address one is.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// All addresses that begin alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    first: IpAddr,
    bits: u8,
}

/// A text that names no network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no network: want an address, or an address and the number of its leading bits, such as 10.0.0.0/8")]
pub struct BadNetwork;

impl Network {
    /// Reads `10.0.0.0/8`, `fd00::/8`, or a single address.
    pub fn parse(text: &str) -> Result<Self, BadNetwork> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits.parse::<u8>().map_err(|_| BadNetwork)?)),
            None => (text, None),
        };
        let first: IpAddr = address.parse().map_err(|_| BadNetwork)?;
        let width = if first.is_ipv4() { 32 } else { 128 };
        let bits = bits.unwrap_or(width);
        if bits > width {
            return Err(BadNetwork);
        }
        Ok(Self { first, bits })
    }

    /// Whether an address is in it; an IPv4 address within IPv6 (`::ffff:a.b.c.d`) counts as the IPv4 address.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.first, address.to_canonical()) {
            (IpAddr::V4(a), IpAddr::V4(b)) => {
                same(u128::from(a.to_bits()) << 96, u128::from(b.to_bits()) << 96, self.bits)
            }
            (IpAddr::V6(a), IpAddr::V6(b)) => same(a.to_bits(), b.to_bits(), self.bits),
            _ => false,
        }
    }
}

fn same(a: u128, b: u128, bits: u8) -> bool {
    bits == 0 || (a ^ b) >> (128 - u32::from(bits)) == 0
}

/// From where an address can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reach {
    /// From everywhere.
    Public,
    /// Within a site or a cluster: RFC 1918, shared (100.64.0.0/10), unique local (`fc00::/7`).
    Private,
    /// This machine.
    Loopback,
    /// This link, where platforms keep their metadata.
    LinkLocal,
    /// A platform's own services.
    Platform,
    /// Many machines at once.
    Multicast,
    /// Nothing that a connection should go to: unspecified, reserved, documentation, benchmarks, tunnels.
    Reserved,
}

impl Reach {
    /// As it stands in errors.
    pub fn name(self) -> &'static str {
        match self {
            Self::Public => "public",
            Self::Private => "private",
            Self::Loopback => "loopback",
            Self::LinkLocal => "link-local",
            Self::Platform => "a platform's own",
            Self::Multicast => "multicast",
            Self::Reserved => "reserved",
        }
    }
}

/// From where an address can be reached; one that carries an IPv4 address counts as that.
pub fn reach(address: IpAddr) -> Reach {
    match address {
        IpAddr::V4(address) => reach_v4(address),
        IpAddr::V6(address) => reach_v6(address),
    }
}

fn reach_v4(address: Ipv4Addr) -> Reach {
    match address.octets() {
        // The agent of one platform's hypervisor, with a public look; metadata of another, within the shared network.
        [168, 63, 129, 16] | [100, 100, 100, 200] => Reach::Platform,
        [10, ..] | [192, 168, ..] => Reach::Private,
        [172, b, ..] if b & 0xf0 == 16 => Reach::Private,
        [100, b, ..] if b & 0xc0 == 64 => Reach::Private,
        [127, ..] => Reach::Loopback,
        [169, 254, ..] => Reach::LinkLocal,
        [224..=239, ..] => Reach::Multicast,
        [0 | 240..=255, ..]
        | [192, 0, 0 | 2, _]
        | [192, 88, 99, _]
        | [198, 18 | 19, ..]
        | [198, 51, 100, _]
        | [203, 0, 113, _] => Reach::Reserved,
        _ => Reach::Public,
    }
}

fn reach_v6(address: Ipv6Addr) -> Reach {
    let s = address.segments();
    let carried = |high: u16, low: u16| reach_v4(Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low)));
    match s {
        [0, 0, 0, 0, 0, 0, 0, 1] => Reach::Loopback,
        // IPv4-mapped, translated (RFC 8215 and 6052) and 6to4: what matters is where the IPv4 address leads.
        [0, 0, 0, 0, 0, 0xffff, a, b]
        | [0, 0, 0, 0, 0xffff, 0, a, b]
        | [0x64, 0xff9b, 0, 0, 0, 0, a, b]
        | [0x2002, a, b, ..] => carried(a, b),
        [0xfd00, 0xec2, ..] => Reach::Platform,
        [a, ..] if a & 0xfe00 == 0xfc00 => Reach::Private,
        [a, ..] if a & 0xffc0 == 0xfe80 => Reach::LinkLocal,
        [a, ..] if a & 0xff00 == 0xff00 => Reach::Multicast,
        // Teredo, benchmarks, ORCHID and the other protocol assignments; documentation.
        [0x2001, b, ..] if b < 0x200 || b == 0xdb8 => Reach::Reserved,
        [0x3fff, b, ..] if b < 0x1000 => Reach::Reserved,
        [a, ..] if a & 0xe000 == 0x2000 => Reach::Public,
        _ => Reach::Reserved,
    }
}
