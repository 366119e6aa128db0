// SPDX-License-Identifier: GPL-2.0-only
/*
 * Ferry: a DMA engine in software, for tests, with fault injection.
 *
 * Its parameters, in /sys/module/ferry_soft_dma/parameters/, apply from the
 * next copy on:
 *
 *   delay_us		duration of each copy
 *   reverse		the last pending copy is done first
 *   fail_ppm		copies per million that fail after a partial write
 *   descriptors	maximum number of copies in flight in a channel
 *   mute		no copy is done and none completes, until it is 0 again
 *
 * Locks: the lock of a channel, in any context, around its lists. Copies are
 * made in a work item; completions are reported with bottom halves disabled,
 * as in most drivers.
 */
#define pr_fmt(fmt) "ferry_soft_dma: " fmt

#include <linux/ferry_dma.h>
#include <linux/delay.h>
#include <linux/dma-direct.h>
#include <linux/dma-mapping.h>
#include <linux/dmaengine.h>
#include <linux/init.h>
#include <linux/module.h>
#include <linux/platform_device.h>
#include <linux/random.h>
#include <linux/slab.h>
#include <linux/workqueue.h>

#include "dmaengine.h"

#undef MODULE_PARAM_PREFIX
#define MODULE_PARAM_PREFIX "ferry_soft_dma."

#define SOFT_CHANNELS	4

static unsigned int delay_us;
module_param(delay_us, uint, 0644);
static bool reverse;
module_param(reverse, bool, 0644);
static unsigned int fail_ppm;
module_param(fail_ppm, uint, 0644);
static unsigned int descriptors = 64;
module_param(descriptors, uint, 0644);
static bool mute;
module_param(mute, bool, 0644);

void ferry_soft_behave(const struct ferry_soft_manners *manners)
{
	WRITE_ONCE(delay_us, manners->delay_us);
	WRITE_ONCE(fail_ppm, manners->fail_ppm);
	WRITE_ONCE(descriptors, manners->descriptors);
	WRITE_ONCE(reverse, manners->reverse);
	WRITE_ONCE(mute, manners->mute);
}

struct soft_desc {
	struct dma_async_tx_descriptor tx;
	struct list_head node;
	dma_addr_t dst;
	dma_addr_t src;
	size_t len;
};

struct soft_chan {
	struct dma_chan chan;
	spinlock_t lock;
	/* submitted; issued; cancelled because the channel was stopped */
	struct list_head submitted;
	struct list_head issued;
	struct list_head stopped;
	unsigned int nr;
	struct delayed_work work;
};

struct soft_engine {
	struct dma_device dma;
	struct soft_chan chans[SOFT_CHANNELS];
};

static struct soft_chan *to_soft_chan(struct dma_chan *chan)
{
	return container_of(chan, struct soft_chan, chan);
}

static struct soft_desc *to_soft_desc(struct dma_async_tx_descriptor *tx)
{
	return container_of(tx, struct soft_desc, tx);
}

static dma_cookie_t soft_submit(struct dma_async_tx_descriptor *tx)
{
	struct soft_chan *chan = to_soft_chan(tx->chan);

	guard(spinlock_irqsave)(&chan->lock);
	list_add_tail(&to_soft_desc(tx)->node, &chan->submitted);
	return dma_cookie_assign(tx);
}

static struct dma_async_tx_descriptor *
soft_prep_memcpy(struct dma_chan *dchan, dma_addr_t dst, dma_addr_t src,
		 size_t len, unsigned long flags)
{
	struct soft_chan *chan = to_soft_chan(dchan);
	struct soft_desc *desc;

	scoped_guard(spinlock_irqsave, &chan->lock) {
		if (chan->nr >= READ_ONCE(descriptors))
			return NULL;
		chan->nr++;
	}
	desc = kzalloc_obj(*desc, GFP_NOWAIT);
	if (!desc) {
		guard(spinlock_irqsave)(&chan->lock);
		chan->nr--;
		return NULL;
	}
	dma_async_tx_descriptor_init(&desc->tx, dchan);
	desc->tx.tx_submit = soft_submit;
	desc->tx.flags = flags;
	desc->dst = dst;
	desc->src = src;
	desc->len = len;
	return &desc->tx;
}

static void soft_issue_pending(struct dma_chan *dchan)
{
	struct soft_chan *chan = to_soft_chan(dchan);

	guard(spinlock_irqsave)(&chan->lock);
	list_splice_tail_init(&chan->submitted, &chan->issued);
	if (!list_empty(&chan->issued))
		mod_delayed_work(system_dfl_wq, &chan->work, 0);
}

static void *soft_address(struct soft_chan *chan, dma_addr_t addr)
{
	return phys_to_virt(dma_to_phys(chan->chan.device->dev, addr));
}

static void soft_copy(struct soft_chan *chan, struct soft_desc *desc)
{
	struct dmaengine_result result = { .result = DMA_TRANS_NOERROR };
	void *dst = soft_address(chan, desc->dst);

	if (READ_ONCE(delay_us))
		usleep_range(delay_us, delay_us + delay_us / 8);
	if (get_random_u32_below(1000000) < READ_ONCE(fail_ppm)) {
		memset(dst, 0x5a, desc->len);
		result.result = DMA_TRANS_WRITE_FAILED;
	} else {
		memcpy(dst, soft_address(chan, desc->src), desc->len);
	}
	local_bh_disable();
	dma_cookie_complete(&desc->tx);
	dmaengine_desc_get_callback_invoke(&desc->tx, &result);
	local_bh_enable();
}

static void soft_work(struct work_struct *work)
{
	struct soft_chan *chan = container_of(to_delayed_work(work),
					      struct soft_chan, work);
	struct soft_desc *desc;

	for (;;) {
		scoped_guard(spinlock_irqsave, &chan->lock) {
			if (list_empty(&chan->issued))
				return;
			if (READ_ONCE(mute)) {
				mod_delayed_work(system_dfl_wq, &chan->work,
						 msecs_to_jiffies(10));
				return;
			}
			if (READ_ONCE(reverse))
				desc = list_last_entry(&chan->issued,
						       struct soft_desc, node);
			else
				desc = list_first_entry(&chan->issued,
							struct soft_desc, node);
			list_del(&desc->node);
		}
		soft_copy(chan, desc);
		kfree(desc);
		guard(spinlock_irqsave)(&chan->lock);
		chan->nr--;
	}
}

static int soft_terminate_all(struct dma_chan *dchan)
{
	struct soft_chan *chan = to_soft_chan(dchan);

	guard(spinlock_irqsave)(&chan->lock);
	list_splice_tail_init(&chan->submitted, &chan->stopped);
	list_splice_tail_init(&chan->issued, &chan->stopped);
	return 0;
}

static void soft_synchronize(struct dma_chan *dchan)
{
	struct soft_chan *chan = to_soft_chan(dchan);
	struct soft_desc *desc, *next;
	LIST_HEAD(stopped);

	cancel_delayed_work_sync(&chan->work);
	scoped_guard(spinlock_irqsave, &chan->lock)
		list_splice_init(&chan->stopped, &stopped);
	list_for_each_entry_safe(desc, next, &stopped, node) {
		kfree(desc);
		guard(spinlock_irqsave)(&chan->lock);
		chan->nr--;
	}
}

static void soft_free_chan(struct dma_chan *dchan)
{
	soft_terminate_all(dchan);
	soft_synchronize(dchan);
}

static int soft_probe(struct platform_device *pdev)
{
	struct soft_engine *engine;
	struct dma_device *dma;
	int i, rc;

	engine = devm_kzalloc(&pdev->dev, sizeof(*engine), GFP_KERNEL);
	if (!engine)
		return -ENOMEM;
	rc = dma_coerce_mask_and_coherent(&pdev->dev, DMA_BIT_MASK(64));
	if (rc)
		return rc;

	dma = &engine->dma;
	dma->dev = &pdev->dev;
	dma_cap_set(DMA_MEMCPY, dma->cap_mask);
	dma_cap_set(DMA_PRIVATE, dma->cap_mask);
	dma->device_free_chan_resources = soft_free_chan;
	dma->device_prep_dma_memcpy = soft_prep_memcpy;
	dma->device_issue_pending = soft_issue_pending;
	dma->device_tx_status = dma_cookie_status;
	dma->device_terminate_all = soft_terminate_all;
	dma->device_synchronize = soft_synchronize;
	INIT_LIST_HEAD(&dma->channels);
	for (i = 0; i < SOFT_CHANNELS; i++) {
		struct soft_chan *chan = &engine->chans[i];

		spin_lock_init(&chan->lock);
		INIT_LIST_HEAD(&chan->submitted);
		INIT_LIST_HEAD(&chan->issued);
		INIT_LIST_HEAD(&chan->stopped);
		INIT_DELAYED_WORK(&chan->work, soft_work);
		chan->chan.device = dma;
		dma_cookie_init(&chan->chan);
		list_add_tail(&chan->chan.device_node, &dma->channels);
	}
	platform_set_drvdata(pdev, engine);
	return dma_async_device_register(dma);
}

static void soft_remove(struct platform_device *pdev)
{
	struct soft_engine *engine = platform_get_drvdata(pdev);

	dma_async_device_unregister(&engine->dma);
}

static struct platform_driver soft_driver = {
	.probe	= soft_probe,
	.remove	= soft_remove,
	.driver	= { .name = "ferry_soft_dma" },
};

static int __init soft_init(void)
{
	struct platform_device *pdev;
	int rc;

	rc = platform_driver_register(&soft_driver);
	if (rc)
		return rc;
	pdev = platform_device_register_simple("ferry_soft_dma",
					       PLATFORM_DEVID_NONE, NULL, 0);
	if (!IS_ERR(pdev))
		return 0;
	platform_driver_unregister(&soft_driver);
	return PTR_ERR(pdev);
}
device_initcall(soft_init);
