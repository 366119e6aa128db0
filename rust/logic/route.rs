// SPDX-License-Identifier: GPL-2.0-only

//! Whether CPUs, DMA channels or both copy a batch.

/// The values of `copy/method`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyMethod {
    /// Idle CPUs if there are any, otherwise DMA channels.
    Auto,
    /// The migrating task, folio by folio, as in mainline.
    Serial,
    /// The migrating task and idle CPUs.
    Cpu,
    /// DMA channels, for all that they have room for.
    Dma,
    /// CPUs and DMA channels together.
    Hybrid,
}

impl CopyMethod {
    /// Returns whether the method requires DMA channels.
    pub fn needs_channels(self) -> bool {
        matches!(self, CopyMethod::Dma | CopyMethod::Hybrid)
    }
}

/// What copies a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The migrating task and idle CPUs.
    pub cpus: bool,
    /// DMA channels.
    pub channels: bool,
}

impl Route {
    /// Returns whether CPUs copy only what the channels have no room for.
    pub fn channels_alone(self) -> bool {
        self.channels && !self.cpus
    }
}

/// Returns what copies a batch; [`None`] if mainline does.
///
/// `channels` tells whether there are DMA channels and the batch is large enough for them, and
/// `large` whether its folios are large. `idle` returns the number of idle CPUs; it is called only
/// if the result depends on it.
///
/// [`CopyMethod::Auto`] uses no channels for small folios: each folio needs its own descriptor,
/// which costs more than it saves.
///
/// ```
/// use ferry_logic::route::{choose, Route, CopyMethod};
///
/// let channels = Route { cpus: false, channels: true };
/// assert_eq!(choose(CopyMethod::Auto, true, true, || 0), Some(channels));
/// assert_eq!(choose(CopyMethod::Auto, true, true, || 3), Some(Route { cpus: true, channels: false }));
/// // Without a channel CPUs copy.
/// assert_eq!(choose(CopyMethod::Dma, false, true, || 3), Some(Route { cpus: true, channels: false }));
/// assert_eq!(choose(CopyMethod::Serial, true, true, || 3), None);
/// ```
pub fn choose(
    method: CopyMethod,
    channels: bool,
    large: bool,
    idle: impl FnOnce() -> usize,
) -> Option<Route> {
    let (cpus, channels) = match method {
        CopyMethod::Serial => return None,
        CopyMethod::Cpu => (true, false),
        CopyMethod::Auto if channels && large => match idle() {
            0 => (false, true),
            _ => (true, false),
        },
        CopyMethod::Auto => (true, false),
        CopyMethod::Dma => (!channels, channels),
        CopyMethod::Hybrid => (true, channels),
    };
    Some(Route { cpus, channels })
}

#[cfg(test)]
mod tests {
    use super::*;

    const METHODS: [CopyMethod; 5] = [
        CopyMethod::Auto,
        CopyMethod::Serial,
        CopyMethod::Cpu,
        CopyMethod::Dma,
        CopyMethod::Hybrid,
    ];

    #[test]
    fn without_channels_no_way_but_serial_is_without_cpus() {
        for method in METHODS {
            for idle in [0, 1, 31] {
                let route = choose(method, false, true, || idle);
                let cpus = Route {
                    cpus: true,
                    channels: false,
                };
                assert_eq!(route, (method != CopyMethod::Serial).then_some(cpus));
            }
        }
    }

    #[test]
    fn somebody_is_always_asked() {
        for method in METHODS {
            for idle in [0, 1] {
                let route = choose(method, true, true, || idle);
                assert!(route.is_none_or(|route| route.cpus || route.channels));
            }
        }
    }

    #[test]
    fn only_hybrid_has_both() {
        for method in METHODS {
            let both =
                choose(method, true, false, || 1).is_some_and(|route| route.cpus && route.channels);
            assert_eq!(both, method == CopyMethod::Hybrid);
        }
    }
}
