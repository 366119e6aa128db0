// SPDX-License-Identifier: GPL-2.0-only
/*
 * Ferry: wrappers of dmaengine and of the DMA mapping API for Rust. No policy.
 *
 * Context: functions that request, stop or release channels, or wait, may
 * sleep. All others: any context but NMI.
 *
 * Locks: the lock of an engine's device is held from the request for a channel
 * until the channel is taken, so that its driver stays. It is taken under
 * dma_list_mutex, by trylock. Bus notifiers run with it held, and take the
 * lock of the notifier chain and then the locks of ferry_dma_leave().
 * ferry_dma_buses_lock, around the registration of a notifier, is taken with
 * none of these held.
 */
#include <linux/ferry_dma.h>
#include <linux/device/bus.h>
#include <linux/dma-mapping.h>
#include <linux/dmaengine.h>
#include <linux/mm.h>
#include <linux/mutex.h>
#include <linux/string.h>
#include <linux/suspend.h>

#include <kunit/visibility.h>
#include <linux/sysfs.h>
#include <linux/wait.h>

#ifdef CONFIG_ARM64_MTE
#include <asm/mte.h>
#endif

/* Buses with DMA engines: platform, PCI and others. */
static struct ferry_dma_bus {
	const struct bus_type *bus;
	struct notifier_block nb;
} ferry_dma_buses[4];

static DEFINE_MUTEX(ferry_dma_buses_lock);

static int ferry_dma_bus_event(struct notifier_block *nb, unsigned long event,
			       void *dev)
{
	/*
	 * Before the driver unbinds, since a driver does not wait for its
	 * clients by itself.
	 */
	if (event == BUS_NOTIFY_UNBIND_DRIVER)
		ferry_dma_leave(dev);
	return NOTIFY_OK;
}

/*
 * Returns whether a notifier reports drivers that unbind from devices of a
 * bus.
 */
static bool ferry_dma_watched(const struct bus_type *bus)
{
	struct ferry_dma_bus *slot;

	for (slot = ferry_dma_buses; slot < ARRAY_END(ferry_dma_buses); slot++) {
		/* Pairs with the release in ferry_dma_watch(). */
		if (smp_load_acquire(&slot->bus) == bus)
			return true;
	}
	return false;
}

/* Registers a notifier for a bus. Returns false if it cannot. */
static bool ferry_dma_watch(const struct bus_type *bus)
{
	struct ferry_dma_bus *slot;

	guard(mutex)(&ferry_dma_buses_lock);
	for (slot = ferry_dma_buses; slot < ARRAY_END(ferry_dma_buses); slot++) {
		if (slot->bus == bus)
			return true;
		if (slot->bus)
			continue;
		slot->nb.notifier_call = ferry_dma_bus_event;
		if (bus_register_notifier(bus, &slot->nb))
			return false;
		/* A reader that sees the bus gets its notifications. */
		smp_store_release(&slot->bus, bus);
		return true;
	}
	return false;
}

/**
 * struct ferry_dma_search - a search for a channel
 * @locked: locked device of the last channel that was offered
 * @unwatched: a bus with a channel, but without a notifier
 * @hopeless: no more buses can be watched
 */
struct ferry_dma_search {
	struct device *locked;
	const struct bus_type *unwatched;
	bool hopeless;
};

/*
 * Returns whether a channel is usable and can be given back. Under
 * dma_list_mutex.
 */
static bool ferry_dma_suits(struct dma_chan *chan, void *param)
{
	struct device *dev = chan->device->dev;
	struct ferry_dma_search *search = param;

	/*
	 * idxd releases channels without a notification on their bus, waits in
	 * prep without a limit, and cannot use them again once terminated.
	 */
	if (dma_has_cap(DMA_COMPLETION_NO_ORDER, chan->device->cap_mask))
		return false;
	/* Bounce buffers would add two copies by a CPU. */
	if (!dev->bus || dma_addressing_limited(dev) ||
	    dma_max_mapping_size(dev) != SIZE_MAX)
		return false;
	if (!ferry_dma_watched(dev->bus)) {
		if (!search->hopeless)
			search->unwatched = dev->bus;
		return false;
	}
	if (search->locked == dev)
		return true;
	ferry_dma_requested(search->locked);
	/* If the lock is held, the driver may be about to unbind. */
	search->locked = device_trylock(dev) ? dev : NULL;
	return search->locked;
}

/* Emits a line of copy/dma_status. */
int ferry_dma_emit(char *buf, int at, const char *name, int node,
		   const struct ferry_dma_counts *counts)
{
	return sysfs_emit_at(buf, at,
			     "%s node=%d copies=%llu bytes=%llu errors=%llu timeouts=%llu refused=%llu parked=%u\n",
			     name, node, counts->copies, counts->bytes,
			     counts->errors, counts->timeouts, counts->refused,
			     counts->parked);
}

/*
 * Takes a memory copy channel for exclusive use. Returns NULL if there is
 * none. Its device stays locked, so that its driver stays, until
 * ferry_dma_requested().
 */
struct dma_chan *ferry_dma_request(struct device **locked)
{
	struct ferry_dma_search search = {};
	struct dma_chan *chan;
	dma_cap_mask_t mask;

	dma_cap_zero(mask);
	dma_cap_set(DMA_MEMCPY, mask);
	for (;;) {
		search.unwatched = NULL;
		chan = __dma_request_channel(&mask, ferry_dma_suits, &search, NULL);
		if (chan)
			break;
		ferry_dma_requested(search.locked);
		search.locked = NULL;
		if (!search.unwatched)
			break;
		search.hopeless = !ferry_dma_watch(search.unwatched);
	}
	*locked = search.locked;
	return chan;
}

void ferry_dma_requested(struct device *locked)
{
	if (locked)
		device_unlock(locked);
}

void ferry_dma_release(struct dma_chan *chan)
{
	dma_release_channel(chan);
}

int ferry_dma_node(struct dma_chan *chan)
{
	return dev_to_node(ferry_dma_device(chan));
}

const char *ferry_dma_name(struct dma_chan *chan)
{
	return dma_chan_name(chan);
}

struct device *ferry_dma_device(struct dma_chan *chan)
{
	return chan->device->dev;
}

/*
 * Returns whether an engine can copy some pages of a folio: their content is
 * only their bytes, without tags or KMSAN state, and is readable. The effect
 * of poisoned memory on an engine is unknown.
 */
bool ferry_dma_reaches(const struct folio *folio, unsigned long first,
		       unsigned long nr)
{
#ifdef CONFIG_ARM64_MTE
	unsigned long i;

	for (i = first; system_supports_mte() && i < first + nr; i++) {
		if (page_mte_tagged(folio_page((struct folio *)folio, i)))
			return false;
	}
#endif
	if (folio_test_hwpoison(folio) ||
	    (folio_test_large(folio) && folio_test_has_hwpoisoned(folio)))
		return false;
	return !IS_ENABLED(CONFIG_KMSAN) && !IS_ENABLED(CONFIG_KASAN_HW_TAGS);
}

/*
 * Maps the same pages of two folios for a copy. Each is contiguous in memory,
 * and so for the device.
 */
bool ferry_dma_map(struct dma_chan *chan, struct folio *dst, struct folio *src,
		   unsigned long first, unsigned long nr,
		   struct ferry_dma_range *range)
{
	struct device *dev = dmaengine_get_dma_device(chan);

	range->len = nr * PAGE_SIZE;
	range->src = dma_map_page(dev, folio_page(src, first), 0, range->len,
				  DMA_TO_DEVICE);
	if (dma_mapping_error(dev, range->src))
		return false;
	range->dst = dma_map_page(dev, folio_page(dst, first), 0, range->len,
				  DMA_FROM_DEVICE);
	if (!dma_mapping_error(dev, range->dst))
		return true;
	dma_unmap_page(dev, range->src, range->len, DMA_TO_DEVICE);
	return false;
}

/*
 * Unmaps a copy. This copies the content of a bounce buffer to the
 * destination.
 */
void ferry_dma_unmap(struct dma_chan *chan, const struct ferry_dma_range *range)
{
	struct device *dev = dmaengine_get_dma_device(chan);

	dma_unmap_page(dev, range->dst, range->len, DMA_FROM_DEVICE);
	dma_unmap_page(dev, range->src, range->len, DMA_TO_DEVICE);
}

/* Number of completions of all engines, and the tasks that wait for one. */
static atomic_t ferry_dma_nr_answers;
static DECLARE_WAIT_QUEUE_HEAD(ferry_dma_waiters);

static void ferry_dma_callback(void *param, const struct dmaengine_result *result)
{
	/* Has release order: the driver's accesses for the copy come before. */
	ferry_dma_answer(param, result->result == DMA_TRANS_NOERROR);
	/* Release: a task that sees the new number sees the completion. */
	atomic_fetch_inc_release(&ferry_dma_nr_answers);
	/* Has a barrier: a waiter that is not seen here sees the new number. */
	if (wq_has_sleeper(&ferry_dma_waiters))
		wake_up_all(&ferry_dma_waiters);
}

/*
 * Submits a copy to the engine, which begins at ferry_dma_issue() at the
 * latest. Returns false if the engine accepts no more; it will not complete
 * the copy then.
 */
bool ferry_dma_submit(struct dma_chan *chan, const struct ferry_dma_range *range,
		      void *ticket)
{
	struct dma_async_tx_descriptor *tx;

	tx = dmaengine_prep_dma_memcpy(chan, range->dst, range->src, range->len,
				       DMA_PREP_INTERRUPT | DMA_CTRL_ACK);
	if (!tx)
		return false;
	tx->callback_result = ferry_dma_callback;
	tx->callback_param = ticket;
	return !dma_submit_error(dmaengine_submit(tx));
}

void ferry_dma_issue(struct dma_chan *chan)
{
	dma_async_issue_pending(chan);
}

/*
 * Returns the number of completions, for ferry_dma_wait(). Called before the
 * caller checks for completions.
 */
unsigned int ferry_dma_answers(void)
{
	/* Acquire: later checks for completions are not reordered before it. */
	return atomic_read_acquire(&ferry_dma_nr_answers);
}

/* Waits until the number of completions differs from @answers, or for @us. */
void ferry_dma_wait(unsigned int answers, unsigned int us)
{
	wait_event_timeout(ferry_dma_waiters,
			   atomic_read(&ferry_dma_nr_answers) != answers,
			   usecs_to_jiffies(us));
}

/*
 * Drivers whose hardware has stopped when terminate_all and synchronize
 * return. Most drivers only drop their descriptors, so memory of copies that
 * timed out must not be freed then. Before adding a driver, read its
 * terminate_all and synchronize.
 */
static const char * const ferry_dma_stoppers[] = { "ferry_soft_dma" };

/*
 * Stops a channel. Returns true if no copy and no callback of it is in flight
 * any more. Returns false if that is unknown; nothing was done.
 */
bool ferry_dma_stop(struct dma_chan *chan)
{
	const struct device_driver *driver = ferry_dma_device(chan)->driver;

	return driver &&
	       match_string(ferry_dma_stoppers, ARRAY_SIZE(ferry_dma_stoppers),
			    driver->name) >= 0 &&
	       !dmaengine_terminate_sync(chan);
}

/* True from the preparation of a suspend to its end: devices come and go. */
static bool ferry_dma_suspends;

bool ferry_dma_asleep(void)
{
	return READ_ONCE(ferry_dma_suspends);
}

VISIBLE_IF_KUNIT int ferry_dma_pm(struct notifier_block *nb,
				  unsigned long event, void *data)
{
	switch (event) {
	case PM_SUSPEND_PREPARE:
	case PM_HIBERNATION_PREPARE:
	case PM_RESTORE_PREPARE:
		WRITE_ONCE(ferry_dma_suspends, true);
		break;
	case PM_POST_SUSPEND:
	case PM_POST_HIBERNATION:
	case PM_POST_RESTORE:
		WRITE_ONCE(ferry_dma_suspends, false);
		break;
	}
	return NOTIFY_OK;
}

static int __init ferry_dma_init(void)
{
	pm_notifier(ferry_dma_pm, 0);
	return 0;
}
late_initcall(ferry_dma_init);
