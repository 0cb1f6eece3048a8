//! A context across its tasks: the agent's memo and the caller's last messages.

use super::raw::Raw;

/// Most messages that are remembered.
pub const MAX_MESSAGES: usize = 20;
/// Most bytes of messages that are remembered.
pub const MAX_MESSAGE_BYTES: usize = 64 << 10;
/// Largest memo, in bytes of JSON.
pub const MAX_MEMO_BYTES: usize = 64 << 10;

/// What a context remembers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conversation {
    /// What the agent gave as its memo.
    pub memo: Option<Raw>,
    /// The caller's messages, oldest first.
    pub messages: Vec<Raw>,
}

impl Conversation {
    /// Remembers a message; the oldest go when there are too many.
    pub fn push(&mut self, message: &Raw) {
        self.messages.push(message.clone());
        let mut bytes = 0;
        let keep = self
            .messages
            .iter()
            .rev()
            .take(MAX_MESSAGES)
            .take_while(|m| {
                bytes += m.size();
                bytes <= MAX_MESSAGE_BYTES
            })
            .count();
        self.messages.drain(..self.messages.len() - keep);
    }

    /// Takes a new memo; `null` erases it.
    pub fn set_memo(&mut self, memo: &Raw) {
        self.memo = (memo.as_str() != "null").then(|| memo.clone());
    }

    /// Bytes of what is remembered.
    pub fn size(&self) -> usize {
        self.memo.as_ref().map_or(0, Raw::size) + self.messages.iter().map(Raw::size).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_messages_are_kept_within_bounds() {
        let mut c = Conversation::default();
        for i in 0..30 {
            c.push(&Raw::assembled(&i.to_string()));
        }
        assert_eq!((c.messages.len(), c.messages[0].as_str()), (MAX_MESSAGES, "10"));
        c.push(&Raw::assembled(&format!("\"{}\"", "x".repeat(MAX_MESSAGE_BYTES - 10))));
        assert_eq!(c.messages.len(), 5);
        c.push(&Raw::assembled(&format!("\"{}\"", "x".repeat(MAX_MESSAGE_BYTES))));
        assert!(c.messages.is_empty());
    }

    #[test]
    fn null_erases_the_memo() {
        let mut c = Conversation::default();
        c.set_memo(&Raw::assembled("{\"a\":1}"));
        assert_eq!(c.size(), 7);
        c.set_memo(&Raw::assembled("null"));
        assert_eq!(c.memo, None);
    }
}
