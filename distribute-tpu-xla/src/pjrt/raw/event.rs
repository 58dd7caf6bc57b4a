//! Events: something that a device will have done.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::Duration;

use super::api::{Api, call, log_destroy, non_null};
use super::bindings::{
    PJRT_Error, PJRT_Event, PJRT_Event_Await_Args, PJRT_Event_Destroy_Args,
    PJRT_Event_IsReady_Args, PJRT_Event_OnReady_Args,
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

    /// Blocks until it has happened, but not longer than `limit`; `false` if it has not by then.
    /// A plugin without a notification for this is waited for without a limit.
    ///
    /// # Errors
    ///
    /// As [`wait`](Self::wait).
    pub fn wait_timeout(&self, limit: Duration) -> Result<bool> {
        if self.api.table.PJRT_Event_OnReady.is_none() || self.is_ready()? {
            return self.wait().map(|()| true);
        }
        let (sender, receiver) = mpsc::channel();
        let api = Arc::clone(&self.api);
        let notice = Box::into_raw(Box::new(EventCallback { api, sender }));
        let mut args = PJRT_Event_OnReady_Args {
            event: self.raw,
            callback: Some(notify),
            user_arg: notice.cast(),
            ..Default::default()
        };
        // SAFETY: the event is alive; the callback may come at any time later, and owns the notice.
        let registered = unsafe { call!(&self.api, PJRT_Event_OnReady, args) };
        if let Err(error) = registered {
            // SAFETY: the plugin has refused the callback, so nothing else has the notice.
            drop(unsafe { Box::from_raw(notice) });
            return Err(error);
        }
        match receiver.recv_timeout(limit) {
            Err(RecvTimeoutError::Timeout) => Ok(false),
            _ => self.wait().map(|()| true),
        }
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

/// The receiver that is told when an event has happened.
struct EventCallback {
    api: Arc<Api>,
    sender: Sender<()>,
}

/// Called by the plugin, once for each notice.
unsafe extern "C" fn notify(error: *mut PJRT_Error, notice: *mut c_void) {
    // SAFETY: the argument is the box that was registered with this callback.
    let notice = unsafe { Box::from_raw(notice.cast::<EventCallback>()) };
    // The one who waits asks the event again; here the error is only freed.
    // SAFETY: the plugin hands the error over.
    let _failure = unsafe { notice.api.check("PJRT_Event_OnReady", error) };
    // The waiter is gone if the limit has passed.
    let _no_receiver = notice.sender.send(());
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
