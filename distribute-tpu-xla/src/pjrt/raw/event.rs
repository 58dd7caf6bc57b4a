//! Events: something that a device will have done.

use std::sync::Arc;

use super::api::{Api, call, log_destroy, non_null};
use super::bindings::{
    PJRT_Event, PJRT_Event_Await_Args, PJRT_Event_Destroy_Args, PJRT_Event_IsReady_Args,
};
use crate::pjrt::error::Result;

/// Something that a device will have done: a copy, an execution.
///
/// Dropping it does not wait.
pub struct Event {
    api: Arc<Api>,
    raw: *mut PJRT_Event,
}

// SAFETY: the C API lets any thread wait for an event and destroy it.
unsafe impl Send for Event {}
// SAFETY: waiting and asking do not change what another thread sees.
unsafe impl Sync for Event {}

impl Event {
    /// Takes the event that `function` returned.
    ///
    /// # Safety
    ///
    /// `raw` is null or an event of this plugin that nothing else destroys.
    pub(super) unsafe fn take(
        api: &Arc<Api>,
        function: &'static str,
        raw: *mut PJRT_Event,
    ) -> Result<Self> {
        let raw = non_null(function, raw)?;
        Ok(Self {
            api: Arc::clone(api),
            raw,
        })
    }

    /// Blocks until it has happened.
    ///
    /// # Errors
    ///
    /// Why it did not happen, in the plugin's words; the same on every call.
    pub fn wait(&self) -> Result<()> {
        let mut args = PJRT_Event_Await_Args {
            event: self.raw,
            ..Default::default()
        };
        // SAFETY: the event is alive.
        unsafe { call!(&self.api, PJRT_Event_Await, args) }
    }

    /// Whether it has happened or failed.
    ///
    /// # Errors
    ///
    /// The plugin's, if it cannot tell.
    pub fn is_ready(&self) -> Result<bool> {
        let mut args = PJRT_Event_IsReady_Args {
            event: self.raw,
            ..Default::default()
        };
        // SAFETY: the event is alive.
        unsafe { call!(&self.api, PJRT_Event_IsReady, args)? };
        Ok(args.is_ready)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let mut args = PJRT_Event_Destroy_Args {
            event: self.raw,
            ..Default::default()
        };
        // SAFETY: this value owns the event.
        log_destroy(unsafe { call!(&self.api, PJRT_Event_Destroy, args) });
    }
}
