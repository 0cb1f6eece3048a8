//! The four operations on push notification configurations, for one caller (A2A 1.0, section 3.1.7 to 3.1.10).

use std::sync::Arc;

use jiff::Timestamp;
use outrigger_protocol::a2a::errors::{Error, Kind};
use outrigger_protocol::a2a::extensions::DELIVERY;
use outrigger_protocol::a2a::operation::Dialect;
use outrigger_protocol::a2a::params::{ConfigRef, ListConfigs};
use outrigger_protocol::a2a::push::{self, Config, DeadLetter};
use outrigger_protocol::a2a::raw::{push_key, push_text};
use outrigger_protocol::a2a::task::Task;
use serde_json::value::RawValue;

use super::Outlet;
use crate::a2a::call::{Answer, Call};
use crate::a2a::ids::uuid;
use crate::a2a::store::{PushConfig, Store, StoreError};

/// Most configurations of a task when the limits name none.
const DEFAULT_MAX: usize = 10;

/// The configurations of tasks.
pub struct Configs {
    outlet: Arc<Outlet>,
    store: Arc<dyn Store>,
}

impl Configs {
    /// Over a store.
    pub fn new(outlet: Arc<Outlet>, store: Arc<dyn Store>) -> Self {
        Self { outlet, store }
    }

    /// `CreateTaskPushNotificationConfig`: events from now on go to the receiver too. A namesake is replaced.
    pub async fn create(&self, call: &Call, params: Option<&RawValue>) -> Result<Answer, Error> {
        self.enabled()?;
        let config = Config::parse(params)?;
        let task = self.task(call, config.task.as_deref().unwrap_or_default()).await?;
        self.admit(&config, "url").await?;
        let mut record = record(&config, &task.id, call);
        record.delivered = task.version;
        self.room(&record, "id").await?;
        let answer = shown(&record, call);
        if task.state.is_terminal() {
            // Nothing will be delivered.
            record.json = push::without_secrets(&record.json);
        }
        self.store.put_push(record).await.map_err(|e| match e {
            StoreError::NotFound => Error::task_not_found(&task.id),
            other => unavailable(other),
        })?;
        Ok(Answer::Json(answer))
    }

    /// `GetTaskPushNotificationConfig`. Callers of 0.3 may leave the id out and get the first one.
    pub async fn get(&self, call: &Call, params: Option<&RawValue>) -> Result<Answer, Error> {
        self.enabled()?;
        let params = ConfigRef::parse(params, call.dialect == Dialect::V10)?;
        let task = self.task(call, &params.task).await?;
        let all = self.store.push_configs(&task.id).await.map_err(unavailable)?;
        let found = match &params.id {
            Some(id) => all.iter().find(|c| *c.id == **id),
            None => all.first(),
        };
        let found = found.ok_or_else(|| {
            Error::new(Kind::TaskNotFound, "the task has no such push notification configuration")
                .with("taskId", &*task.id)
        })?;
        Ok(Answer::Json(shown(found, call)))
    }

    /// `ListTaskPushNotificationConfigs`, by id.
    pub async fn list(&self, call: &Call, params: Option<&RawValue>) -> Result<Answer, Error> {
        self.enabled()?;
        let params = ListConfigs::parse(params)?;
        let task = self.task(call, &params.task).await?;
        let mut all = self.store.push_configs(&task.id).await.map_err(unavailable)?;
        all.sort_by(|a, b| a.id.cmp(&b.id));
        // The token is the id of the last one: it holds whatever is deleted meanwhile.
        let rest = all.iter().filter(|c| params.page_token.as_ref().is_none_or(|after| *c.id > **after));
        let size = params.page_size.map_or(usize::MAX, |n| n as usize);
        let page: Vec<_> = rest.clone().take(size).collect();
        let more = rest.count() > page.len();
        let mut out = String::from("{\"configs\":[");
        for (i, config) in page.iter().enumerate() {
            out.push_str(if i > 0 { "," } else { "" });
            push::write(&config.task, &config.id, &config.json, dead(config, call), &mut out);
        }
        out.push(']');
        push_key(&mut out, "nextPageToken");
        push_text(&mut out, page.last().filter(|_| more).map_or("", |c| &c.id));
        out.push('}');
        Ok(Answer::Json(out))
    }

    /// `DeleteTaskPushNotificationConfig`: fine too for one that is gone.
    pub async fn delete(&self, call: &Call, params: Option<&RawValue>) -> Result<Answer, Error> {
        self.enabled()?;
        let params = ConfigRef::parse(params, true)?;
        let task = self.task(call, &params.task).await?;
        self.store.delete_push(&task.id, params.id.as_deref().unwrap_or_default()).await.map_err(unavailable)?;
        Ok(Answer::Nothing)
    }

    /// The receiver that comes with a message for a task at a version, 0 for one that is about to be written: it gets all
    /// events after that.
    pub async fn inline(
        &self,
        config: &Config<'_>,
        task: &Arc<str>,
        version: u64,
        call: &Call,
    ) -> Result<PushConfig, Error> {
        self.enabled()?;
        self.admit(config, "configuration.taskPushNotificationConfig.url").await?;
        let record = PushConfig { delivered: version, ..record(config, task, call) };
        if version > 0 {
            self.room(&record, "configuration.taskPushNotificationConfig.id").await?;
        }
        Ok(record)
    }

    /// Whether a task may have one more.
    async fn room(&self, record: &PushConfig, field: &str) -> Result<(), Error> {
        let there = self.store.push_configs(&record.task).await.map_err(unavailable)?;
        let max = match self.outlet.live().limits.max_push_configs {
            0 => DEFAULT_MAX,
            max => max as usize,
        };
        if there.len() >= max && !there.iter().any(|c| c.id == record.id) {
            let what = format!("is one too many: a task has at most {max} configurations");
            return Err(Error::invalid_field(field, what));
        }
        Ok(())
    }

    fn enabled(&self) -> Result<(), Error> {
        if self.outlet.live().push.enabled {
            return Ok(());
        }
        Err(Error::new(Kind::PushNotificationNotSupported, "this agent sends no push notifications"))
    }

    async fn admit(&self, config: &Config<'_>, field: &str) -> Result<(), Error> {
        self.outlet.admits(&config.url).await.map_err(|why| Error::invalid_field(field, why))
    }

    /// The task, if the caller may know of it.
    async fn task(&self, call: &Call, id: &str) -> Result<Arc<Task>, Error> {
        match self.store.get(id).await {
            Ok(task) if task.revealed && task.caller == call.caller.key => Ok(task),
            Ok(_) | Err(StoreError::NotFound) => Err(Error::task_not_found(id)),
            Err(e) => Err(unavailable(e)),
        }
    }
}

fn record(config: &Config<'_>, task: &Arc<str>, call: &Call) -> PushConfig {
    let (parent, state) = (call.trace.parent.to_str().unwrap_or_default(), call.trace.state.as_ref());
    PushConfig {
        task: Arc::clone(task),
        id: config.id.as_deref().map_or_else(|| uuid().into(), Into::into),
        json: push::with_trace(&config.json, parent, state.and_then(|s| s.to_str().ok())),
        dialect: call.dialect,
        delivered: 0,
        attempts: 0,
        next: Timestamp::now(),
        dead: None,
    }
}

/// What a caller who asks for it is told of a receiver that was given up.
fn dead<'a>(config: &'a PushConfig, call: &Call) -> Option<DeadLetter<'a>> {
    let why = config.dead.as_deref().filter(|_| call.extensions.iter().any(|uri| uri == DELIVERY))?;
    Some(DeadLetter { why, delivered: config.delivered })
}

fn shown(config: &PushConfig, call: &Call) -> String {
    let mut out = String::with_capacity(config.json.size() + 128);
    push::write(&config.task, &config.id, &config.json, dead(config, call), &mut out);
    out
}

#[allow(clippy::needless_pass_by_value)]
fn unavailable(error: StoreError) -> Error {
    tracing::warn!(target: "business", %error, "the task store failed");
    Error::new(Kind::Unavailable, "the task store does not answer: come again").retry_after(2)
}
