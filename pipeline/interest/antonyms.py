"""Words of opposite meaning: antonyms of WordNet 3.1, and synonyms of either of them, of words that occur in its tagged texts.

Pairs that differ in a prefix alone (un-, dis-, in-, im-, non-) are left out: `opposites` knows them by their form.

WordNet Release 3.0

This software and database is being provided to you, the LICENSEE, by
Princeton University under the following license.  By obtaining, using
and/or copying this software and database, you agree that you have
read, understood, and will comply with these terms and conditions.:

Permission to use, copy, modify and distribute this software and
database and its documentation for any purpose and without fee or
royalty is hereby granted, provided that you agree to comply with
the following copyright notice and statements, including the disclaimer,
and that the same appear on ALL copies of the software, database and
documentation, including modifications that you make for internal
use or for distribution.

WordNet 3.0 Copyright 2006 by Princeton University.  All rights reserved.

THIS SOFTWARE AND DATABASE IS PROVIDED "AS IS" AND PRINCETON
UNIVERSITY MAKES NO REPRESENTATIONS OR WARRANTIES, EXPRESS OR
IMPLIED.  BY WAY OF EXAMPLE, BUT NOT LIMITATION, PRINCETON
UNIVERSITY MAKES NO REPRESENTATIONS OR WARRANTIES OF MERCHANT-
ABILITY OR FITNESS FOR ANY PARTICULAR PURPOSE OR THAT THE USE
OF THE LICENSED SOFTWARE, DATABASE OR DOCUMENTATION WILL NOT
INFRINGE ANY THIRD PARTY PATENTS, COPYRIGHTS, TRADEMARKS OR
OTHER RIGHTS.

The name of Princeton University or Princeton may not be used in
advertising or publicity pertaining to distribution of the software
and/or database.  Title to copyright in this software, database and
any associated documentation shall at all times remain with
Princeton University and LICENSEE agrees to preserve same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

_OPPOSITES: Final = """
abolish:establish,found,launch above:beneath absence:presence absolute:comparative,relative absorb:emit
abstain:consume,have,ingest,take abstract:concrete abundance:scarcity abundant:scarce
accelerate:decelerate,retard,slow acceleration:deceleration,retardation,slowing accept:reject acceptance:rejection
accidentally:advisedly,deliberately,intentionally,purposely accord:disagreement acquaintance:alien,stranger,unknown
active:dormant,passive actively:passively activity:inaction actual:possible,potential acute:chronic
add:deduct,subtract addition:deduction adequacy:deficiency adjective:essential,substantive
admit:deny,exclude,reject,shut advance:demote,recede,retire,retreat,withdraw advantageous:unfavorable
aerobic:anaerobic affected:unmoved affirm:contradict affirmation:reversal afraid:fearless aged:youth
agitate:lull,quiet,still agitation:calmness agreeably:unpleasantly agreement:dissension ahead:backward alien:citizen
alike:dissimilar all:no,some allow:deny,forbid,prevent,prohibit,proscribe,refuse,veto altered:unchanged
alternate:opposite,paired amateur:professional amiss:perfectly ample:meager analysis:synthesis analyze:synthesise
ancestor:descendent anglican:nonconformist angular:rounded anhydrous:hydrous annual:perennial anode:cathode
answer:inquiry,interrogation,query,question antagonistic:conciliatory,synergistic antecedent:subsequent
anterior:posterior antiseptic:septic appealing:unsympathetic appear:vanish applaud:hiss apply:defy
appreciation:depreciation aridity:fruitfulness arise:lie,sit artificially:naturally ascend:descend,set
ascending:descending asleep:awake asset:liability asymmetric:symmetrical asymmetrically:symmetrically
asymmetry:balance,correspondence,symmetry attach:detach attached:detached attract:drive,repulse attraction:repulsion
attractive:repulsive atypical:typical aunt:uncle automatic:manual avoid:confront,face,validate away:home
awkward:graceful back:advance,ahead,face,forward,front,look,veer background:foreground,highlight,spotlight
balance:instability bare:covered basic:incident,incidental bear:bull beautiful:ugly beauty:ugliness
begin:cease,finish,stop,terminate beginning:conclusion,ending,finish believable:incredible
below:above,supra,upstairs best:worst better:aggravate,decline,exacerbate,exasperate,worse,worsen big:small
birth:death,dying black:white,whiten,whiteness blacken:whiten bless:bedamn,curse,damn,desecrate,imprecate
blessed:cursed blessing:disapproval block:remember bloodless:bloody blunt:enliven blur:focus
boo:acclaim,applaud,clap borrow:lend,loan bottom:side,top boy:daughter,girl boycott:frequent,patronize,shop,sponsor
brave:cautious,cowardly,fearful,timid bravery:cowardice,fear
break:bushel,doctor,fix,keep,make,mend,observe,promote,repair,restore breathing:breathless brighten:darken,overcast
broadening:narrowing brother:sis,sister calm:agitate,charge,excite,rouse,stimulate,stormy capitalism:socialism
capitalistic:socialist,socialistic careful:careless carelessly:carefully,cautiously cash:credit catch:unhitch
center:left central:peripheral centrally:peripherally certainty:doubt certification:disenfranchisement
change:remain,rest cheap:expensive cheer:complain,dishearten,kick,plain citizen:foreigner civil:rude
civilian:man,military claim:forego,forfeit,forgo,waive clarity:abstruseness classicist:romantic
clean:dirty,soil,soiled clear:bounce,cloudy,convict,opaque,overcast clearheaded:confused clergy:laity
close:distant,far,open,remote closed:opened closing:opening clot:homogenize coarsely:finely cold:hot,hotness
coldness:hotness collective:distributive come:depart,go comedy:tragedy committed:unattached common:individual
communicate:curse,excommunicate competent:unqualified compliance:disobedience complicate:simplify
compromising:inflexible,sturdy concave:bulging,convex concentrated:unsaturated
concentration:dilution,dispersion,distribution conciliatory:uncompromising confident:diffident,shy,timid
confine:liberate,release conform:depart,deviate,diverge,vary conscript:volunteer conservative:liberal,progressive
consonant:vowel consonantal:vocalic conspicuous:invisible constructive:destructive consumptive:productive
content:discontented contented:discontent continental:intercontinental continual:sporadic
continuation:discontinuance continue:cease,quit contract:dilate,elaborate,enlarge,expand,expound,stretch,widen
contraction:enlargement,expansion conventional:atomic,nuclear convict:acquit,discharge,exonerate convincing:flimsy
cool:warm cooperation:competition,contention corporeal:immaterial correct:falsify correctly:wrongly
courtesy:rudeness cover:expose covertly:overtly cowardice:courage cowardly:courageous credible:unbelievable
crude:refined cut:rough danger:safety dark:day,lighting darken:lighten daughter:son day:night,nighttime
dead:alive,live,living deaden:animate,enliven deaf:hearing decelerate:quicken,speed deceleration:quickening
decentralize:centralize,concentrate decertify:certify,license declarative:interrogative
decline:accept,improvement,melioration decrease:growth decreasing:increasing decrement:growth deep:shallow
default:pay,payment defeat:triumph,victory defend:assail,attack,prosecute defense:offence,offense,prosecution
deficient:sufficient defined:vague degeneration:evolution deglycerolize:glycerolize delay:hurry
deliberately:unexpectedly,unintentionally delicate:rugged demote:elevate,promote,raise,upgrade
deny:acknowledge,grant dependable:unreliable dependent:main depersonalize:personalize deposit:dislodge,draw
depress:elate,uplift depression:elation deprive:enrich descendant:ancestor,antecedent,root
descent:climb,raise,upgrade desirable:unwanted despair:hope desynchronizing:synchronism,synchrony
deteriorate:recover differ:agree,be,equal difference:sameness differentiated:uniform difficulty:ease,simplicity
diligent:negligent dilute:undiluted direct:inverse disabling:enabling
disagree:check,concord,concur,correspond,fit,hold,jibe,match,tally disallow:countenance disapprove:okay,sanction
disarm:arm,fortify,gird disarmament:equipping disarray:order disassemble:piece,tack disassembly:assemblage,gathering
discharge:draft,enlist,fill disconnect:link discontinue:preserve,proceed,uphold discourage:encourage
discredit:believe,repute disengage:lock,mesh,obstruct,operate disentangle:mat,snarl,tangle
dishearten:embolden,recreate dishonest:honorable dishonor:honour,laurels,reward disintegrate:incorporate
dislike:liking dislodge:stick,wedge disorder:orderliness dispose:disqualify disprove:demonstrate,establish,show
disrepute:reputation dissent:accede,acquiesce,agree,assent distal:proximal distribution:denseness,density
diverge:converge,meet divest:commit,enthrone,invest,place,put,vest divide:multiply,unify,unite divided:united
docile:stubborn domineering:submissive double:univalent dove:hawk down:up,upward,upwards downstream:upstream
downtown:uptown downward:up,upward,upwards dramatic:lyric draw:push dress:disrobe,peel,strip drowsiness:wakefulness
drunkenness:sobriety dry:lactating,sweet,wet dryness:wetness due:undue dull:bright,lively,sharp early:late,later
east:west eastern:western easy:difficult,quickly ebb:surge,tide elate:dismay eliminate:necessitate
emotional:cerebral,intellectual empirical:theoretical empirically:theoretically employ:unemployment
employee:employer emptiness:fullness empty:fill enable:disable,incapacitate
end:begin,beginning,commence,first,get,kickoff,middle,offset,outset,start enforce:relieve enjoy:endure,suffer
enlightened:uninitiate enter:exit,quit equal:inadequate equally:unevenly equilibrate:unbalance equivocal:unambiguous
erase:record,tape euphoric:distressed,unhappy even:odd excite:stifle exclusive:inclusive
exempt:apply,enforce,implement,taxable exhale:inspire existent:potential existing:nonexistent
expand:abridge,cut,foreshorten,reduce,shorten,shrink export:import,importation extensive:intensive exterior:interior
external:internal extinguish:ignite extraordinary:ordinary fail:manage,pass,succeed,win fair:foul,unjust
fall:arise,ascend,lift,rise,rising false:true familiar:strange,unusual familiarity:strangeness far:near
fastened:unbuttoned fat:lean father:mother fault:merit feature:lack felicity:unhappiness female:male
feminine:masculine,neuter,unwomanly femininity:masculinity few:many figurative:literal figuratively:literally
figure:ground fine:coarse,harsh fire:employ,engage first:last,second fit:unfit fix:unfasten flat:indirectly,sharp
float:settle focus:dim foe:ally follow:lead,precede follower:leader following:leading foolish:wise
forbid:countenance,let forceful:forceless foreign:domestic forfeit:arrogate
forget:mind,recall,recollect,remember,retrieve,think forgetful:mindful,retentive formalism:imitation former:latter
forte:piano fortify:weaken fortunately:unluckily forward:aft,backward,backwards,rearward,reverse found:lost
frail:robust free:blame,block,bound,confine,detain,enforce,freeze,impede,jam,lodge,obstruct,occlude freeze:boil
fresh:preserved,salty,stale friend:enemy,foe,stranger full:empty functional:organic functioning:nonfunctional
future:past,present,yesteryear gain:lose,loss,recede,red,reduce,slim,thin gaseous:liquid gather:distribute
general:particular,specific generalist:specialist generalize:specialize,specify generally:specifically
genuine:imitative girl:son give:starve glad:sad glassless:glazed good:bad,badness,evil,ill goodness:bad,badness,evil
gradual:steep,sudden greater:lesser green:mature,ripe gross:net guilt:innocence guilty:innocent hairless:hairy
happily:sadly happiness:sadness hard:diffuse,diffused,easy,lightly,soft,voiced hardware:package hastily:unhurriedly
have:lack head:foot,rear,tail headed:headless health:illness heat:chill,coldness,cool heaven:hell,pit
heaviness:weightlessness heedless:attentive,thoughtful here:there,thither hesitantly:unhesitatingly
heterogeneous:homogeneous heterozygous:homozygous high:low hire:can,dismiss,displace,fire,sack,terminate
hold:relinquish hollowness:sincerity,solidity honor:disgrace,dishonour,shame hopeful:hopeless hopefully:hopelessly
horizontal:inclined,vertical host:parasite hostile:amicable,friendly humble:proud humility:conceit,pride,vanity
hungry:thirsty husband:waste,wife hydrophilic:hydrophobic hypertrophied:atrophied,diminished,wasted
idle:busy,run,work ignite:quench ignore:know,mark,note,notice illegal:legal illegitimacy:legitimacy
illiterate:literate immature:ripe immunity:susceptibility impartial:prejudiced imperceptibly:noticeably
implicit:explicit,expressed important:insignificant impotence:potency,power,powerfulness impotency:powerfulness
impotent:stiff,strong,virile improbable:likely improperly:decent,decently inactive:operational
inadvertently:wittingly inclined:vertical include:except,exclude,omit incoherent:consistent,logical,ordered
income:expenditure,outlay,spending incoming:outgoing
increase:decrease,decrement,diminish,diminution,fall,lessen,lessening,reduction increased:reduced
incredibly:believably,probably indoor:outdoor indoors:alfresco,outdoors induced:spontaneous indulgent:strict
inferior:superior inferiority:superiority injustice:justness inner:outer
inside:alfresco,exterior,outdoors,outside,outwardly instrumental:vocal insubstantial:material,real
integrate:differentiate,segregate integrated:segregated integration:sequestration intelligence:stupidity
intense:mild interdepartmental:intradepartmental interest:bore,tire intermediate:terminal
intervention:noninterference inward:outward ionized:nonionic irrational:rational irrationally:rationally
irregular:regular irregularity:regularity irregularly:regularly irrelevant:relevant irresolute:resolute
irresponsibility:responsibility irresponsible:responsible irreverence:reverence irreversible:reversible
irritate:soothe joy:sadden,sorrow junior:senior just:unfair juvenile:adult,grownup
keep:breach,discontinue,let,lose,offend,transgress,violate king:queen knot:unravel,unscramble lady:lord,noble
large:small laugh:cry,weep layman:clergyman,reverend lead:deficit lean:rich least:most leave:arrive,come,enter,get
legitimate:illegitimate,outlaw let:disallow,prevent level:erect,rear lie:sit light:dark,darkness,extinguish,heavy
lightly:heavily,thickly limited:limitless linear:planar linger:hasten,race,rush,speed lingual:nonlinguistic
little:big,large,much,tall live:recorded local:express,general,limited,national location:studio
loose:affixed,compact,confine,stiffen,tight lose:acquire,find,profit,regain,win loser:success,victor,winner
lost:saved loud:piano loudly:piano,quietly love:detest,hate,hatred lower:elevate,lift lowered:raised lowland:upland
loyal:unpatriotic luckily:unfortunately magnetic:geographic,geographical major:minor make:undo man:woman
masculine:neuter maximal:minimal,minimum maximize:minimize maximum:minimal,minimum meaningful:meaningless
medical:operative mental:physical merciful:merciless metal:nonmetallic
middle:beginning,early,ending,first,kickoff,late,offset,outset,start mindful:mindless minority:bulk,majority
misconception:concept,conception,construct misconstruction:construction,expression
miss:attend,feature,have,hit,strike misused:used more:fewer,less motion:stillness move:refrain,rest,stay,stick
much:slight multilateral:unilateral multiply:fraction,singly nadir:zenith naive:sophisticated
narrow:broad,wide,widen narrowly:broadly,generally,loosely national:international native:adopted,foreign,strange
natural:artificial,flat,sharp,supernatural,unreal necessary:unneeded negative:neutral,positive nephew:niece
neutral:positive never:always,ever new:worn nice:awful,nasty night:daylight,daytime no:some,yes nonresident:occupant
normal:abnormal,unnatural north:south northern:southern objective:subjective oblique:parallel
obscurity:clarity,clearness,lucidity,prominence off:on offensive:defensive,savory offsaddle:saddle offshore:onshore
often:seldom old:immature,new,young oleophilic:oleophobic open:closed,fold,shut opposite:synonym optimism:pessimism
optimistic:pessimistic ostentatious:unpretentious outfield:diamond,infield outflow:inflow,influx outlaw:legitimize
outside:indoor,indoors,interior,within outwardly:inwardly overachievement:underachievement
overestimate:underestimate,underrate overhand:underhanded overhead:subsurface,surface pain:pleasure painful:painless
parent:child,kid particular:universal partly:all,altogether,completely,entirely,right,totally,whole,wholly
pass:bomb,running past:hereafter,present peace:war penalty:advantage,reward permanent:temporary
permanently:temporarily permit:disallow,forbid,prevent,prohibit,proscribe,veto persistent:shed
persuade:deter,dissuade plain:fancy playful:serious politely:rudely port:starboard postwar:prewar poverty:wealth
power:impotency,inability powerful:powerless praise:criticise,criticize,knock preceding:succeeding
precocious:retarded prefix:suffix preparation:resolution present:absent preserved:destroyed primarily:secondarily
primary:secondary private:public privately:publicly privileged:underprivileged pro:amateur,anti,con
probable:unlikely profane:sacred profound:superficial profundity:shallowness,superficiality promote:bump,relegate
prosecute:represent prosecution:denial prospective:retrospective proximate:ultimate pull:force,push
purge:rehabilitate qualitative:quantitative quickly:slow,slowly quiet:active,noisy,sound quietly:noisily
raise:level,lower rarely:frequently,often,oftentimes real:nominal realism:unreality rear:front reassure:vex,worry
recall:issue,supply recede:progress reduce:enlarge,magnify,oxidise refrain:act,consume
refuse:accept,admit,consent,have,take reject:approve relax:stiffen,strain release:block,freeze,hold
remarkably:commonly,normally,ordinarily,usually remember:bury repair:bust repel:appeal,attract,draw,pull resent:wish
resolved:unsolved retreat:progress,progression reverse:obverse rich:poor ride:walk
right:center,falsify,improperly,incorrect,left,wrong,wrongly rise:descend,descent,downfall,set,wane rising:falling
roughness:smoothness running:passing,standing rural:urban rush:delay,detain safe:dangerous,out
same:different,other,unlike sedate:arouse,brace,energize,stimulate segregate:mix sell:buy,purchase separate:joint
separation:unification,union serious:frivolous sharpen:blunt,blur,drop,dull,flatten,soften shaved:unshaven
shaven:unshaved short:long,retentive,tall shorten:lengthen shout:whisper show:conceal,hide shrink:stretch
shut:unfastened side:top significant:unimportant simple:complex,compound simplicity:complexity
single:common,double,married,multiple sink:float,source,swim slow:fast slowly:rapidly,speedily
smooth:jumpy,rocky,rough,roughen,staccato sober:drunk,gone,playful socialistic:capitalist
soft:concentrated,forte,hardened,loud soften:harden softly:aloud,forte,loud,loudly
softness:distinctness,fitness,intensity,sharpness,volume solid:gaseous,hollow,liquid solidity:porosity sound:silence
specialize:broaden spineless:vertebrate spoken:written spread:collect,fold,garner,gather
square:circular,crooked,round stand:lie,relent,sit,soften,yield standing:seated,sitting
start:finish,finishing,halt,stop starve:feed stay:change,depart,quit steadily:uncertainly steady:unsteadily
stiffen:loosen still:moving,sparkling stimulate:dampen,stifle stop:continue,go
straight:corrupt,crooked,curly,curved,curving,indirectly straighten:bend,flex strength:weakness strong:weak
strongly:weakly stupid:intelligent,smart subordinate:dominant,independent substantive:procedural subsurface:surface
succeed:miscarry,precede success:failure supply:demand sure:incertain,uncertain surrender:resist,withstand
survive:succumb,yield sweet:salty,sour symmetry:imbalance synchronism:asynchrony synergistic:incompatible
synthesize:analyse,analyze,dissect synthetic:analytic,analytical take:give tame:wild tangle:unravel tender:tough
tense:lax,relax,relaxed there:hither thick:thinly thickly:thinly thickness:thinness
thin:fat,full,thick,thicken,thickly thoughtful:thoughtless thoughtfully:unthinking thrifty:wasteful
tie:disconnect,unlace,untie timid:bold timidity:boldness,daring trust:mistrust,suspect truth:falsity,inaccuracy
uncompromising:flexible understate:amplify,exaggerate,magnify understatement:exaggeration,magnification undo:wrap
undress:clothe,garb,garment unfasten:secure unfastened:buttoned,tied unfit:qualify
unintentionally:advisedly,purposely unite:separate,split unjust:equitable unlike:similar unnatural:unaffected
unreal:existent,substantial unsaturated:pure unsuitably:appropriately,properly untie:bind unvarying:varied
unwind:roll,strain,tense,twine,wrap upgrade:downgrade upstairs:downstairs useful:useless
uselessness:usefulness,utility validate:quash,void valuable:worthless verbal:mathematical,numerical vernal:wintry
victory:licking wake:sleep,slumber wane:climb,full,mount,wax waning:waxing waste:economize weaken:strengthen
well:badly,ill,poorly,sick white:blacken,blackness whole:fractional,half wholly:part,partially
wisdom:folly,foolishness withdraw:bank,deposit,engage woodenly:gracefully,graciously work:laze,slug worry:assure
worsen:amend,improve worth:worthlessness wrong:compensate,correct,correctly,redress young:aged,elderly
"""


def pairs() -> Iterator[tuple[str, str]]:
    """Every pair once, in base forms."""
    for group in _OPPOSITES.split():
        word, others = group.split(":")
        for other in others.split(","):
            yield word, other
